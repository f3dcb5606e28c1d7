"""The tool that says whether a package is small enough to be installed in passing."""

from __future__ import annotations

import http.server
import importlib.util
import json
import threading
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "wheel_size.py"


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("wheel_size", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def served():
    """An address where a file of 3 MB is said to lie; asking for its content fails the test."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(200)
            if "unknown" not in self.path:
                self.send_header("Content-Length", "3000000")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def test_sizes_are_asked_and_added(tool, served, tmp_path, monkeypatch, capsys):
    (tmp_path / "a b.whl").write_bytes(bytes(1_000_000))
    found = {"torch": ("2.9", (tmp_path / "a b.whl").as_uri()), "c": ("1", f"{served}/c.whl#sha256=1")}
    monkeypatch.setattr(tool, "files", lambda requirement: found)
    assert tool.main(["--most", "4", "torch"]) == 0
    assert capsys.readouterr().out == "torch\n"
    assert tool.main(["--most", "3.9", "torch"]) == 1
    said = capsys.readouterr().out
    assert said == "torch cannot be had: torch: 4 MB to download; 3.9 MB are bearable\n"


@pytest.mark.parametrize(("older", "wanted"), [(0, None), (1, None), (2, "torch<2.8"), (9, "torch<2.8")])
def test_older_releases_may_be_smaller(tool, monkeypatch, capsys, older, wanted):
    releases = {"torch": "2.9+cu130", "torch<2.9": "2.8", "torch<2.8": "2.7"}
    sizes = {"2.9+cu130": 3e9, "2.8": 3e9, "2.7": 2e8}
    monkeypatch.setattr(tool, "files", lambda asked: {"torch": (releases[asked], releases[asked]), "x": ("1", "1")})
    monkeypatch.setattr(tool, "size", lambda address: sizes.get(address, 1e6))
    assert tool.main(["--most", "400", "--older", str(older), "torch"]) == (wanted is None)
    said = capsys.readouterr().out
    assert "torch: 3001 MB to download" in said if wanted is None else said == f"{wanted}\n"


def test_an_older_release_is_not_asked_for_where_only_what_it_needs_is_large(tool, monkeypatch, capsys):
    monkeypatch.setattr(tool, "files", lambda asked: {"x": ("1", "1")})
    monkeypatch.setattr(tool, "size", lambda address: 1e9)
    assert tool.main(["--older", "3", "torch"]) == 1
    assert capsys.readouterr().out.count("MB to download") == 1


def test_what_cannot_be_had_is_not_bearable(tool, served, monkeypatch, capsys):
    monkeypatch.setattr(tool, "files", lambda requirement: {"torch": ("1", f"{served}/unknown.whl")})
    assert tool.main(["torch"]) == 1
    assert "does not say how large it is" in capsys.readouterr().out


def test_pip_is_asked_for_what_it_would_take(tool, monkeypatch):
    def run(command, **options):
        one = {"metadata": {"name": "torch", "version": "2.9"}, "download_info": {"url": "file:///x.whl"}}
        Path(command[command.index("--report") + 1]).write_text(json.dumps({"install": [one]}))
        assert "--dry-run" in command and command[-1] == "torch"
        return type("Done", (), {"returncode": 0, "stderr": ""})

    monkeypatch.setattr(tool.subprocess, "run", run)
    assert tool.files("torch") == {"torch": ("2.9", "file:///x.whl")}
    refusing = type("Done", (), {"returncode": 1, "stderr": "ERROR: first\nERROR: no matching distribution\n"})
    monkeypatch.setattr(tool.subprocess, "run", lambda command, **options: refusing)
    with pytest.raises(OSError, match="no matching distribution"):
        tool.files("torch")
