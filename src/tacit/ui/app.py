"""The server of `tacit ui`: pages, streams of changes, and, with --control, forms."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from ..errors import TacitError
from ..report.catalog import Catalog, Entry, signature
from ..report.markup import Safe, tag
from . import compare_page, jobs_page, run_page, runs_page
from .federation_page import Federation
from .jobs import Jobs
from .live import digest, stream
from .security import Guarded
from .shell import document, href, script, style

LOOK_AGAIN = 2.0  # seconds between two questions to the hub
Parts = Callable[[], Awaitable[Mapping[str, str]]]


class Pages:
    """The pages over one directory of runs; with a federation its page, with jobs theirs."""

    def __init__(self, runs: Path, federation: Federation | None = None, jobs: Jobs | None = None):
        self.runs, self.catalog = runs, Catalog(runs)
        self.federation, self.jobs = federation, jobs
        self.stopping = asyncio.Event()
        self._made: dict[
            str, tuple[Hashable, dict[str, str]]
        ] = {}  # a page with several readers is made once
        self._lock = threading.Lock()

    # --- what pages consist of ------------------------------------------------------------------------------

    def rooms(self, root: str) -> dict[str, str]:
        found = {"Runs": f"{root}/"}
        if self.federation is not None:
            found["Federation"] = f"{root}/federation"
        if self.jobs is not None:
            found["Jobs"] = f"{root}/jobs"
        return found

    def _cached(self, key: str, mark: Hashable, make: Callable[[], dict[str, str]]) -> dict[str, str]:
        with self._lock:
            known = self._made.get(key)
            if known is None or known[0] != mark:
                known = mark, make()
                if len(self._made) > 16:
                    self._made.clear()
                self._made[key] = known
            return known[1]

    def list_mark(self) -> Hashable:
        return tuple(self.catalog.entries())

    def list_parts(self, root: str) -> dict[str, str]:
        entries = self.catalog.entries()
        return self._cached("list", tuple(entries), lambda: runs_page.parts(root, entries))

    def run_mark(self, entry: Entry) -> Hashable:
        # the state, too: a run that writes nothing more becomes a stopped one
        return signature(entry.path, entry.kind), self.catalog.get(entry.id).state

    def run_parts(self, entry: Entry) -> dict[str, str]:
        mark = self.run_mark(entry)
        return self._cached(f"run {entry.id}", mark, lambda: run_page.parts(run_page.read_contents(entry)))

    def compare_parts(self, root: str, entries: list[Entry]) -> dict[str, str]:
        mark = tuple(self.run_mark(e) for e in entries)
        key = "compare " + "\n".join(e.id for e in entries)
        return self._cached(
            key,
            mark,
            lambda: run_page.parts(compare_page.compare(entries, lambda e: href(root, "run", e.id))),
        )

    def federation_mark(self) -> Hashable:
        assert self.federation is not None
        return self.federation.mark(), tuple(self.catalog.entries())

    def federation_parts(self, root: str) -> dict[str, str]:
        assert self.federation is not None
        return run_page.parts(self.federation.contents(root, self.catalog.entries()))

    async def keep_looking(self) -> None:
        """Ask the hub again and again, as long as the server runs; pages show the last answer."""
        while self.federation is not None and not self.stopping.is_set():
            await asyncio.to_thread(self.federation.look)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), LOOK_AGAIN)

    # --- answers --------------------------------------------------------------------------------------------

    def page(self, request: Request, title: str, body: list[Safe], here: str, mark: Hashable) -> Response:
        root = request.scope["tacit_root"]
        query = f"?{request.url.query}&" if request.url.query else "?"
        path = request.scope["path"]
        live = f"{root}/live{quote(path) if path != '/' else '/runs'}{query}"
        text = document(
            root,
            title,
            body,
            here=here,
            live=f"{live}mark={digest(repr(mark))}",
            rooms=self.rooms(root),
        )
        return HTMLResponse(text)

    def live(
        self, request: Request, mark: Callable[[], Hashable], parts: Callable[[], Mapping[str, str]]
    ) -> Response:
        return StreamingResponse(
            self._stream(request.query_params.get("mark", ""), mark, parts), media_type="text/event-stream"
        )

    async def _stream(
        self, known: str, mark: Callable[[], Hashable], parts: Callable[[], Mapping[str, str]]
    ) -> AsyncIterator[bytes]:
        async def make() -> Mapping[str, str]:
            return await asyncio.to_thread(parts)

        # A page that is up to date is sent only what changes from now on. The mark is looked at after the
        # parts are made: had the files changed before, it would be another one.
        have = {k: digest(v) for k, v in (await make()).items()}
        if digest(repr(await asyncio.to_thread(mark))) != known:
            have = {}
        async for data in stream(mark, make, have, self.stopping):
            yield data

    async def runs_list(self, request: Request) -> Response:
        root = request.scope["tacit_root"]
        mark = await asyncio.to_thread(self.list_mark)
        made = await asyncio.to_thread(self.list_parts, root)
        return self.page(request, "Runs", runs_page.body(root, str(self.runs), made), "Runs", mark)

    async def runs_live(self, request: Request) -> Response:
        root = request.scope["tacit_root"]
        return self.live(request, self.list_mark, lambda: self.list_parts(root))

    async def run(self, request: Request) -> Response:
        entry = await asyncio.to_thread(self.catalog.get, request.path_params["id"])
        mark = await asyncio.to_thread(self.run_mark, entry)
        made = await asyncio.to_thread(self.run_parts, entry)
        return self.page(request, entry.id, run_page.body(made, entry.path), "", mark)

    async def run_live(self, request: Request) -> Response:
        entry = await asyncio.to_thread(self.catalog.get, request.path_params["id"])
        return self.live(request, lambda: self.run_mark(entry), lambda: self.run_parts(entry))

    def _selected(self, request: Request) -> list[Entry]:
        return compare_page.check([self.catalog.get(i) for i in request.query_params.getlist("run")])

    async def compare(self, request: Request) -> Response:
        entries = await asyncio.to_thread(self._selected, request)
        mark = tuple(self.run_mark(e) for e in entries)
        made = await asyncio.to_thread(self.compare_parts, request.scope["tacit_root"], entries)
        return self.page(request, "Comparison", run_page.body(made, self.runs), "", mark)

    async def compare_live(self, request: Request) -> Response:
        entries = await asyncio.to_thread(self._selected, request)
        root = request.scope["tacit_root"]
        return self.live(
            request,
            lambda: tuple(self.run_mark(e) for e in entries),
            lambda: self.compare_parts(root, entries),
        )

    async def show_federation(self, request: Request) -> Response:
        root = request.scope["tacit_root"]
        assert self.federation is not None
        mark = await asyncio.to_thread(self.federation_mark)
        made = await asyncio.to_thread(self.federation_parts, root)
        place = self.federation.kit.directory or ""
        return self.page(request, "Federation", run_page.body(made, place), "Federation", mark)

    async def federation_live(self, request: Request) -> Response:
        root = request.scope["tacit_root"]
        return self.live(request, self.federation_mark, lambda: self.federation_parts(root))

    async def decide(self, request: Request) -> Response:
        form = await _form(request)
        assert self.federation is not None
        await asyncio.to_thread(
            self.federation.decide, *(form.get(k, "") for k in ("job", "kind", "by", "note"))
        )
        return self._back(request, "federation")

    def _back(self, request: Request, where: str) -> Response:
        return RedirectResponse(f"{request.scope['tacit_root']}/{where}", status_code=303)

    async def show_jobs(self, request: Request) -> Response:
        assert self.jobs is not None
        root = request.scope["tacit_root"]
        mark = await asyncio.to_thread(jobs_page.mark, self.jobs)
        made = run_page.parts(await asyncio.to_thread(jobs_page.contents, root, self.jobs))
        return self.page(request, "Jobs", run_page.body(made, self.runs), "Jobs", mark)

    async def jobs_live(self, request: Request) -> Response:
        jobs, root = self.jobs, request.scope["tacit_root"]
        assert jobs is not None
        return self.live(
            request,
            lambda: jobs_page.mark(jobs),
            lambda: run_page.parts(jobs_page.contents(root, jobs)),
        )

    def act_of(self, verb: str) -> Callable[[Request], Awaitable[Response]]:
        """Return the answer to the form that starts, stops or resumes a job."""

        async def act(request: Request) -> Response:
            form = await _form(request)
            jobs = self.jobs
            assert jobs is not None
            name = form.get("file" if verb == "start" else "name", "")
            do = {"start": jobs.start, "stop": jobs.stop, "resume": jobs.resume}[verb]
            await asyncio.to_thread(do, name)
            return self._back(request, "jobs")

        return act

    async def failed(self, request: Request, error: Exception) -> Response:
        """A page for an error that the reader can understand; anything else is an internal error."""
        known = isinstance(error, TacitError)
        text = str(error) if known else "internal error (please report it); `tacit ui --debug` shows more."
        root = request.scope["tacit_root"]
        body = [
            tag("header", tag("h1", "This cannot be shown")),
            tag("div", tag("main", tag("section", tag("p", text)), id="content"), class_="columns single"),
        ]
        return HTMLResponse(
            document(root, "Error", body, rooms=self.rooms(root)), status_code=404 if known else 500
        )

    def routes(self) -> list[Route]:
        """The pages that there are; those that change something exist with --control only."""
        found = self._reading()
        if self.federation is not None:
            found += [
                Route("/federation", self.show_federation),
                Route("/live/federation", self.federation_live),
            ]
            if self.federation.control:
                found.append(Route("/federation/decide", self.decide, methods=["POST"]))
        if self.jobs is not None:
            acts = [
                Route(f"/jobs/{a}", self.act_of(a), methods=["POST"]) for a in ("start", "stop", "resume")
            ]
            found += [Route("/jobs", self.show_jobs), Route("/live/jobs", self.jobs_live), *acts]
        return found

    def _reading(self) -> list[Route]:
        return [
            Route("/", self.runs_list),
            Route("/live/runs", self.runs_live),
            Route("/run/{id:path}", self.run),
            Route("/live/run/{id:path}", self.run_live),
            Route("/compare", self.compare),
            Route("/live/compare", self.compare_live),
            Route("/ui.css", _file(style(), "text/css")),
            Route("/ui.js", _file(script(), "text/javascript")),
        ]


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form; the guard has bounded its size."""
    values = parse_qs((await request.body()).decode("utf-8", "replace"), keep_blank_values=True)
    return {k: v[0] for k, v in values.items()}


def _file(text: str, kind: str) -> Any:
    async def answer(request: Request) -> Response:
        return Response(text, media_type=kind)

    return answer


def create_app(pages: Pages, token: str, hosts: set[str], debug: bool = False) -> Guarded:
    """Return the ASGI application, which answers only under /TOKEN/ and only at these hosts."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(pages.keep_looking())
        yield
        pages.stopping.set()
        looking.cancel()

    async def missing(request: Request, error: Exception) -> Response:
        return await pages.failed(request, TacitError("there is no such page."))

    handlers: dict[Any, Any] = {TacitError: pages.failed, 404: missing, 405: missing}
    if not debug:
        handlers[500] = pages.failed
    app = Starlette(routes=pages.routes(), lifespan=lifespan, exception_handlers=handlers)
    return Guarded(app, token, hosts)


def address_of(host: str, port: int, token: str) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/{quote(token)}/"
