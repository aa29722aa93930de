"""tacit completion: a script that completes verbs and options in bash, zsh or fish."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .verbs import Answer, arg

SHELLS = ("bash", "zsh", "fish")
INSTALL = {
    "bash": "tacit completion bash > ~/.local/share/bash-completion/completions/tacit",
    "zsh": "tacit completion zsh > ~/.zfunc/_tacit    # a directory in fpath",
    "fish": "tacit completion fish > ~/.config/fish/completions/tacit.fish",
}


class Node(NamedTuple):
    """What may follow some words: verbs with their help, options with theirs, fixed values of options."""

    words: tuple[str, ...]
    verbs: dict[str, str]
    options: dict[str, str]
    values: dict[str, tuple[str, ...]]


def add(verb: Callable[..., Any]) -> None:
    verb(
        "completion",
        _completion,
        "Print a script that completes verbs and options in your shell.",
        arg("shell", choices=SHELLS, help="bash, zsh or fish"),
        epilog="Install it with: " + "; ".join(INSTALL.values()),
    )


def _completion(args: Any) -> Answer:
    from . import _parser

    nodes = list(read_nodes(_parser()))
    text = {"bash": to_bash, "zsh": to_zsh, "fish": to_fish}[args.shell](nodes)
    return {"shell": args.shell, "script": text}, lambda console: print(text, end="")


def read_nodes(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[Node]:
    """Yield a node for the parser and for each verb below it; `party log` is below `party`."""
    verbs: dict[str, str] = {}
    inner: dict[tuple[str, ...], argparse.ArgumentParser] = {}
    options: dict[str, str] = {}
    values: dict[str, tuple[str, ...]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {a.dest: a.help or "" for a in action._choices_actions}
            for name, below in action.choices.items():
                inner[tuple(name.split())] = below
                verbs.setdefault(name.split()[0], helps.get(name, "") if " " not in name else "")
        elif action.help != argparse.SUPPRESS:
            for name in action.option_strings:
                if name.startswith("--"):
                    options[name] = (action.help or "").replace("%%", "%")
                    if action.choices is not None:
                        values[name] = tuple(map(str, action.choices))
            if not action.option_strings and action.choices is not None:
                verbs |= dict.fromkeys(map(str, action.choices), "")
    pairs = {(*words, name) for name in verbs}
    yield Node(words, verbs, options, values)
    heads: dict[str, dict[str, str]] = {}
    for path in inner:
        if len(path) == 2:
            heads.setdefault(path[0], {})[path[1]] = inner[path].description or ""
    for path, below in inner.items():
        for node in read_nodes(below, (*words, *path)):
            more = heads.pop(path[0], {}) if len(path) == 1 and node.words == (*words, *path) else {}
            yield node._replace(verbs={**node.verbs, **more})
    for name, more in heads.items():  # words that are a verb only with a second one, as `runs list`
        if (*words, name) in pairs:
            yield Node((*words, name), more, {}, {})


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def to_bash(nodes: list[Node]) -> str:
    cases, choices = [], []
    for node in nodes:
        key = " ".join(node.words)
        cases.append(f"    {_quote(key)}) words={_quote(' '.join([*node.verbs, *node.options]))} ;;")
        for option, values in node.values.items():
            choices.append(f"    {_quote(f'{key}|{option}')}) words={_quote(' '.join(values))} ;;")
    known = " ".join(f"[{_quote(' '.join(n.words))}]=1" for n in nodes if n.words)
    return (
        "# bash completion of tacit, made by `tacit completion bash`\n"
        "_tacit() {\n"
        f"  local -A known=({known})\n"
        '  local path="" word words="" i current="${COMP_WORDS[COMP_CWORD]}" before\n'
        "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
        '    word="${COMP_WORDS[i]}"\n'
        '    [[ -n "${known[${path:+$path }$word]}" ]] && path="${path:+$path }$word"\n'
        "  done\n"
        '  before="${COMP_WORDS[COMP_CWORD-1]}"\n'
        '  case "$path|$before" in\n' + "\n".join(choices) + "\n  esac\n"
        '  if [[ -z "$words" ]]; then case "$path" in\n' + "\n".join(cases) + "\n  esac; fi\n"
        '  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current"; [[ "$current" == -* ]] || '
        'compgen -f -- "$current")\n'
        "}\n"
        "complete -o filenames -F _tacit tacit\n"
    )


def to_zsh(nodes: list[Node]) -> str:
    def described(names: dict[str, str]) -> str:
        return " ".join(
            _quote(name.replace(":", "\\:") + (f":{' '.join(text.split())}" if text else ""))
            for name, text in names.items()
        )

    cases = []
    for node in nodes:
        key = " ".join(node.words)
        cases.append(
            f"    {_quote(key)}) verbs=({described(node.verbs)}); options=({described(node.options)}) ;;"
        )
    choices = [
        f"    {_quote(' '.join(n.words) + '|' + option)}) "
        f"compadd -- {' '.join(map(_quote, values))}; return ;;"
        for n in nodes
        for option, values in n.values.items()
    ]
    known = " ".join(f"{_quote(' '.join(n.words))} 1" for n in nodes if n.words)
    return (
        "#compdef tacit\n"
        "# zsh completion of tacit, made by `tacit completion zsh`\n"
        "_tacit() {\n"
        f"  local -A known=({known})\n"
        "  local current_path='' word i\n"
        "  local -a verbs options\n"
        "  for ((i = 2; i < CURRENT; i++)); do\n"
        '    word="$words[i]"\n'
        "    (( ${+known[${current_path:+$current_path }$word]} )) && "
        'current_path="${current_path:+$current_path }$word"\n'
        "  done\n"
        '  case "$current_path|$words[CURRENT-1]" in\n' + "\n".join(choices) + "\n  esac\n"
        '  case "$current_path" in\n' + "\n".join(cases) + "\n  esac\n"
        "  if [[ $words[CURRENT] == -* ]]; then _describe option options; "
        "else _describe verb verbs; _files; fi\n"
        "}\n"
        'if [[ $funcstack[1] == _tacit ]]; then _tacit "$@"; else compdef _tacit tacit; fi\n'
    )


def to_fish(nodes: list[Node]) -> str:
    lines = ["# fish completion of tacit, made by `tacit completion fish`", "complete -c tacit -f"]
    lines += [
        "function __tacit_at",
        "  set -l words (commandline -opc)[2..-1]",
        "  set -l plain",
        "  for w in $words; string match -q -- '-*' $w; or set -a plain $w; end",
        '  set -l text (string join " " -- $plain)',
        '  test "$text" = "$argv[1]"; or string match -q -- "$argv[1] *" "$text"',
        "end",
    ]
    for node in nodes:
        key = " ".join(node.words)
        exactly = f"__tacit_at {_quote(key)}" if key else "test (count (commandline -opc)) -eq 1"
        for name, text in node.verbs.items():
            more = f" -d {_quote(' '.join(text.split()))}" if text else ""
            lines.append(f"complete -c tacit -n {_quote(exactly)} -a {_quote(name)}{more}")
        for name, text in node.options.items():
            values = f" -x -a {_quote(' '.join(node.values[name]))}" if name in node.values else ""
            what = f"-l {name[2:]} -d {_quote(' '.join(text.split()))}{values}"
            lines.append(f"complete -c tacit -n {_quote(exactly)} {what}")
        if node.words:
            lines.append(f"complete -c tacit -n {_quote(exactly)} -F")
    return "\n".join(lines) + "\n"
