"""A local Hugging Face hub on the loopback interface, with the endpoints for huggingface_hub.

Repositories are folders ROOT/OWNER/NAME/REVISION/.
"""

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest


@dataclass
class LoopbackHub:
    root: Path
    url: str = ""
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)  # repo -> status, error code
    broken_after: dict[str, int] = field(default_factory=dict)  # file -> bytes of its next download
    requests: list[str] = field(default_factory=list)  # "GET NAME RANGE" of every file

    def commit(self, repo: str, revision: str) -> str | None:
        """The commit id of a branch or commit: a hash of its folder's name; None if unknown."""
        for folder in sorted((self.root / repo).iterdir()):
            name = hashlib.sha1(f"{repo}@{folder.name}".encode()).hexdigest()
            if revision in (folder.name, name):
                return name
        return None

    def folder(self, repo: str, revision: str) -> Path:
        commit = self.commit(repo, revision)
        return next(f for f in (self.root / repo).iterdir() if self.commit(repo, f.name) == commit)

    def files(self, repo: str, revision: str) -> dict[str, Path]:
        folder = self.folder(repo, revision)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path for path in paths}

    def downloaded_files(self) -> set[str]:
        """The files whose content was requested."""
        return {line.split()[1] for line in self.requests if line.startswith("GET")}


class _HubHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: LoopbackHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlparse(self.path).path).strip("/").split("/")
        repo = "/".join(path[2:4] if path[:2] == ["api", "models"] else path[:2])
        if repo in self.hub.refused:
            status, code = self.hub.refused[repo]
            return self._respond(status, b"", {"X-Error-Code": code})
        if not (self.hub.root / repo).is_dir():
            return self._respond(404, b"", {"X-Error-Code": "RepoNotFound"})
        revision_index = {"revision": 5, "tree": 5, "resolve": 3}
        index = next((at for word, at in revision_index.items() if word in path[2:5]), None)
        revision = path[index] if index is not None and len(path) > index else "main"
        commit = self.hub.commit(repo, revision)
        if commit is None:
            return self._respond(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if path[:2] != ["api", "models"]:
            return self._file(repo, commit, "/".join(path[4:]))
        files = self.hub.files(repo, commit)
        if "tree" in path:
            entries: list[dict[str, Any]] = []
            for name, file in files.items():
                oid, size = hashlib.sha1(file.read_bytes()).hexdigest(), file.stat().st_size
                entries.append({"type": "file", "path": name, "size": size, "oid": oid})
            return self._json(entries)
        siblings = [{"rfilename": n, "size": f.stat().st_size} for n, f in files.items()]
        return self._json({"id": repo, "sha": commit, "siblings": siblings, "private": False})

    def _file(self, repo: str, commit: str, name: str) -> None:
        file = self.hub.files(repo, commit).get(name)
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if file is None:
            return self._respond(404, b"", headers | {"X-Error-Code": "EntryNotFound"})
        body = file.read_bytes()
        headers["ETag"] = f'"{hashlib.sha256(body).hexdigest()}"'
        wanted = self.headers.get("Range", "")
        self.hub.requests.append(f"{self.command} {name} {wanted}")
        start = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        stop = self.hub.broken_after.pop(name, None) if self.command == "GET" else None
        self._respond(206 if wanted else 200, body[start:], headers, stop)

    def _json(self, value: Any) -> None:
        self._respond(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _respond(
        self, status: int, body: bytes, headers: dict[str, str], stop: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:stop])
        if stop is not None:
            self.wfile.flush()
            self.connection.close()
            self.close_connection = True

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving(root: Path) -> Iterator[LoopbackHub]:
    hub = LoopbackHub(root)
    handler = type("Answers", (_HubHandler,), {"hub": hub})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_hub(
    monkeypatch: pytest.MonkeyPatch, url: str, cache: Path, token: str | None = None
) -> None:
    """Make huggingface_hub in this process use only `url`, with a separate cache."""
    from huggingface_hub import constants

    for name, value in {
        "ENDPOINT": url,
        "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,  # another protocol, which is not implemented here
        "HF_TOKEN_PATH": str(cache / "no-token"),
    }.items():
        monkeypatch.setattr(constants, name, value)
    if token is None:
        monkeypatch.delenv("HF_TOKEN", raising=False)
    else:
        monkeypatch.setenv("HF_TOKEN", token)
