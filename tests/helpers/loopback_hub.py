"""A local Hugging Face hub on the loopback interface, with the endpoints for huggingface_hub.

Repositories are folders ROOT/OWNER/NAME/REVISION/. Pushed files are kept in `pushed`.
"""

import base64
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

import pytest


@dataclass
class LoopbackHub:
    root: Path
    url: str = ""
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)  # repo -> status, error code
    broken_after: dict[str, int] = field(
        default_factory=dict
    )  # file -> bytes after which one download breaks
    requests: list[str] = field(default_factory=list)  # "GET NAME RANGE" of every file
    repos: dict[str, bool] = field(default_factory=dict)  # created by a push -> whether private
    pushed: dict[str, dict[str, bytes]] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # large files by their hash

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
        if repo in self.hub.repos and path[:2] == ["api", "models"]:
            info = {"id": repo, "private": self.hub.repos[repo], "siblings": []}
            return self._json(info)
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
            tree = [_tree_entry(name, file) for name, file in files.items()]
            return self._json(tree)
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

    def do_POST(self) -> None:
        path = unquote(urlparse(self.path).path).strip("/").split("/")
        body = self._body()
        if not self.headers.get("Authorization"):
            return self._respond(401, b"{}", {"X-Error-Message": "Invalid credentials"})
        if path == ["api", "repos", "create"]:
            return self._create(json.loads(body))
        if path == ["api", "validate-yaml"]:
            return self._json({"errors": [], "warnings": []})
        if path[-4:] == ["info", "lfs", "objects", "batch"]:
            objects = json.loads(body)["objects"]
            upload = {"href": f"{self.hub.url}/upload"}
            listed = [
                o | {"actions": {"upload": {"href": f"{upload['href']}?oid={o['oid']}"}}}
                for o in objects
            ]
            return self._json({"transfer": "basic", "objects": listed})
        repo = "/".join(path[2:4])
        if "preupload" in path:
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            return self._json({"files": files})
        return self._commit(repo, body)

    def do_PUT(self) -> None:
        oid = parse_qs(urlparse(self.path).query)["oid"][0]
        self.hub.objects[oid] = self._body()
        self._respond(200, b"", {})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while count := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(count))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _create(self, request: dict[str, Any]) -> None:
        repo = f"{request.get('organization') or 'someone'}/{request['name']}"
        if repo in self.hub.refused:
            status, code = self.hub.refused[repo]
            return self._respond(status, b"{}", {"X-Error-Code": code})
        if repo in self.hub.repos:
            return self._json({"error": "exists", "url": f"{self.hub.url}/{repo}"}, 409)
        private = request.get("private") or request.get("visibility") == "private"
        self.hub.repos[repo] = bool(private)
        self._json({"url": f"{self.hub.url}/{repo}", "id": repo, "name": repo})

    def _commit(self, repo: str, body: bytes) -> None:
        stored = self.hub.pushed.setdefault(repo, {})
        for line in body.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                stored[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                stored[value["path"]] = self.hub.objects[value["oid"]]
        commit_url = f"{self.hub.url}/{repo}/commit/{'c' * 40}"
        self._json(
            {"success": True, "commitOid": "c" * 40, "commitUrl": commit_url, "hookOutput": ""}
        )

    def _json(self, value: Any, status: int = 200) -> None:
        self._respond(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

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


def _tree_entry(name: str, file: Path) -> dict[str, Any]:
    oid = hashlib.sha1(file.read_bytes()).hexdigest()
    return {"type": "file", "path": name, "size": file.stat().st_size, "oid": oid}


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
