"""What installing a package would download here, and whether that is bearable.

    python tools/wheel_size.py --most 400 torch      # exit status 0: at most 400 MB; 1: more, or it cannot be had

pip says which files it would take, dependencies included; their sizes are asked from where they lie, and nothing is
downloaded. On a plain index `torch` is a build for CUDA of several GB, on others one for CPUs of some 200 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit

SECONDS = 60


def files(requirement: str) -> list[str]:
    """Addresses of the files that pip would take for a requirement that are not installed yet."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report", str(report), requirement]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise OSError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "pip failed")
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return [each["download_info"]["url"] for each in found]


def size(address: str) -> int:
    """Bytes of a file, without its content."""
    parts = urlsplit(address)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).stat().st_size
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE"))
    request = urllib.request.Request(address.partition("#")[0], method="HEAD")
    with urllib.request.urlopen(request, timeout=SECONDS, context=context) as answer:
        length = answer.headers["Content-Length"]
    if length is None:
        raise OSError(f"{address}: the server does not say how large it is")
    return int(length)


def main(arguments: list[str] | None = None) -> int:
    """Print one line; see the module's text for the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("requirement")
    parser.add_argument("--most", type=float, default=400, metavar="MB", help="(default: %(default)g)")
    options = parser.parse_args(arguments)
    try:
        megabytes = sum(map(size, files(options.requirement))) / 1e6
    except OSError as error:
        print(f"{options.requirement} cannot be had: {error}")
        return 1
    print(f"{options.requirement}: {megabytes:.0f} MB to download, {options.most:g} MB are bearable")
    return 0 if megabytes <= options.most else 1


if __name__ == "__main__":
    sys.exit(main())
