"""Who gets an answer from `tacit ui`, and what an answer allows a page to do."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.report import made

from .conftest import served


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("asked") / "runs"
    made.run(root / "secret-name", parties=2, rounds=3)
    made.run(root.parent / "outside", parties=2, rounds=3)
    (root / "link").symlink_to(root.parent / "outside")
    with served(root) as found:
        yield found


def ask(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    where = urlsplit(address)
    connection = http.client.HTTPConnection(where.netloc, timeout=300)
    named = {k.replace("_", "-"): v for k, v in headers.items()}
    connection.request(method, path, headers=named, body=b"a=b" if method == "POST" else None)
    answer = connection.getresponse()
    text = "" if "event-stream" in answer.headers.get("content-type", "") else answer.read().decode()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, text
    connection.close()
    return found


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/run/secret-name",
        "/live/runs",
        "/ui.js",
        "/{short}/",
        "/{token}x/",
        "/%00/",
        "//{token}/",
        "/é/",
    ],
)
def test_without_the_token_nothing_is_told(address: str, path: str) -> None:
    token = urlsplit(address).path.strip("/")
    filled = path.format(token=token, short=token[:-1]).replace("é", "%C3%A9")
    status, headers, text = ask(address, filled)
    assert status == 403
    assert "secret-name" not in text
    assert token not in text
    assert headers["content-security-policy"].startswith("default-src 'none'")


def test_another_host_is_refused_although_the_token_is_right(address: str) -> None:
    """DNS rebinding: a page elsewhere whose name now leads to this machine."""
    where = urlsplit(address)
    assert ask(address, where.path, Host=f"attacker.example:{where.port}")[0] == 403
    assert ask(address, where.path, Host=f"localhost:{where.port}")[0] == 200


def test_pages_may_load_nothing_from_elsewhere_and_run_no_inline_script(address: str) -> None:
    path = urlsplit(address).path
    for place in ("", "run/secret-name", "run/none", "nothing"):
        _, headers, text = ask(address, path + place)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert "style=" not in text.replace("stylesheet", "")
        assert text.count("<script") == 1
        assert "http" not in text


@pytest.mark.parametrize("place", ["run/../outside", "run/%2e%2e/outside", "run/link", "run//etc", "run/.."])
def test_no_address_leads_out_of_the_directory(address: str, place: str) -> None:
    status, _, text = ask(address, urlsplit(address).path + place)
    assert status == 404
    assert "Progress and parties" not in text


@pytest.mark.parametrize("place", ["", "run/secret-name", "federation", "federation/decide", "job/start"])
def test_without_control_there_is_nothing_to_post_to(address: str, place: str) -> None:
    where = urlsplit(address)
    status, _, _ = ask(address, where.path + place, "POST", Origin=f"http://{where.netloc}")
    assert status in (404, 405)


def test_a_form_of_another_origin_is_refused(address: str) -> None:
    where = urlsplit(address)
    assert ask(address, where.path, "POST", Origin="http://attacker.example")[0] == 403
    assert ask(address, where.path, "POST")[0] == 403
