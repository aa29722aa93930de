"""Keyword arguments derived from declared options.

`with_options(TrainConfig)` gives a function with `**options` the signature and the documentation of the
options that a config declares, and refuses any other name. `types.py` says the same to type checkers; it is
written by `python -m tacit.config.write_types`, and a test holds it to the declarations.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..parameters import allowed, nearest

F = TypeVar("F", bound=Callable[..., Any])


def with_options(options: dict[str, Any], elsewhere: Mapping[str, str] | None = None) -> Callable[[F], F]:
    """Decorate a function that takes `**options`: set its signature, its documentation, and refuse others.

    `elsewhere` says which option has another name in a library that users come from.
    """

    def decorate(function: F) -> F:
        own = inspect.signature(function)
        fixed = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        declared = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=_default(f), annotation=takes_of(f)
            )
            for name, f in options.items()
        ]
        known = {p.name for p in fixed} | set(options)

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for name in given:
                if name not in known:
                    raise TypeError(
                        f"{function.__name__}() got an unexpected keyword argument {name!r}. "
                        + (
                            f"Here it is called {elsewhere[name]!r}."
                            if elsewhere and name in elsewhere
                            else nearest(name, sorted(known))
                        )
                    )
            return function(*args, **given)

        call.__signature__ = own.replace(parameters=[*fixed, *declared])  # type: ignore[attr-defined]
        call.__doc__ = inspect.cleandoc(function.__doc__ or "") + "\n\nOptions:\n" + document(options)
        return call  # type: ignore[return-value]

    return decorate


def _default(f: dataclasses.Field[Any]) -> Any:
    return inspect.Parameter.empty if f.default is dataclasses.MISSING else f.default


def takes_of(f: dataclasses.Field[Any]) -> str:
    """Return the type of what a user may write for an option."""
    return str(f.metadata.get("takes") or f.type)


def document(options: dict[str, Any]) -> str:
    """Return one paragraph for each option: its name, default, values and meaning."""
    lines = []
    for name, f in options.items():
        default = "" if f.default is dataclasses.MISSING else f" = {f.default!r}"
        values = "" if f.metadata["kind"] == "component" else f" ({allowed(f.metadata)})"
        text = f"{name}{default}: {f.metadata['doc']}{values}."
        lines += textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="        ")
    return "\n".join(lines)
