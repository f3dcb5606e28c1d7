"""What installing a package would download here, and whether that is bearable.

    python tools/wheel_size.py --most 400 torch      # exit status 0: at most 400 MB; 1: more, or it cannot be had
    python tools/wheel_size.py --older 4 torch       # the newest of five releases that is bearable

What pip is to install is printed, or why there is nothing. pip says which files it would take, dependencies included;
their sizes are asked from where they lie, and nothing is downloaded. On a plain index `torch` is a build for CUDA of
several GB, on others some or all releases are builds for CPUs of some 200 MB.
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


def files(requirement: str) -> dict[str, tuple[str, str]]:
    """Version and address of the files that pip would take for a requirement that are not installed yet, by name."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report", str(report), requirement]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise OSError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "pip failed")
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {each["metadata"]["name"]: (each["metadata"]["version"], each["download_info"]["url"]) for each in found}


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


def bearable(requirement: str, most: float, older: int) -> str:
    """The requirement, or one of an older release of the package, of which at most so many MB are downloaded."""
    refused, asked = [], requirement
    for _ in range(older + 1):
        found = files(asked)
        megabytes = sum(size(address) for _, address in found.values()) / 1e6
        if megabytes <= most:
            return asked
        refused.append(f"{asked}: {megabytes:.0f} MB to download")
        if requirement not in found:  # not the package itself is what is large
            break
        asked = f"{requirement}<{found[requirement][0].partition('+')[0]}"
    raise OSError(f"{'; '.join(refused)}; {most:g} MB are bearable")


def main(arguments: list[str] | None = None) -> int:
    """Print one line; see the module's text for the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("requirement")
    parser.add_argument("--most", type=float, default=400, metavar="MB", help="(default: %(default)g)")
    parser.add_argument("--older", type=int, default=0, metavar="N", help="older releases that may be taken instead")
    options = parser.parse_args(arguments)
    try:
        print(bearable(options.requirement, options.most, options.older))
    except OSError as error:
        print(f"{options.requirement} cannot be had: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
