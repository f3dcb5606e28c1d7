"""What the README claims: its code runs, its row of a matrix is one, its table of variables is complete."""

import os
import re
import subprocess
import sys

from rocmkern.matrix import expand, loads


def _blocks(readme: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)


def test_the_api_in_one_screen_runs(readme, tmp_path):
    script = tmp_path / "screen.py"
    script.write_text(_blocks(readme, "python")[0])
    environment = {**os.environ, "ROCMKERN_TARGET": "python"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "TargetInfo(name='python'" in done.stdout


def test_the_row_makes_the_number_of_tests_that_is_claimed(readme):
    text = _blocks(readme, "yaml")[0]
    cases = expand(loads(f"version: 1\nregistry: rocmkern.ops.catalog\ndefaults: {{category: quick}}\n{text}"))
    assert f"are {len(cases)} tests on each target" in " ".join(readme.split())


def test_every_environment_variable_is_documented_and_every_documented_one_exists(readme, root):
    in_code = set()
    for path in (root / "rocmkern").rglob("*.py"):
        in_code |= set(re.findall(r"\bROCMKERN_[A-Z][A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")))
    in_table = set(re.findall(r"^\| `(ROCMKERN_[A-Z_]+)` \|", readme, re.MULTILINE))
    assert in_table == in_code


def test_linked_files_and_named_paths_exist(readme, root):
    links = re.findall(r"\]\(([^)#:]+)\)", readme)
    paths = re.findall(r"`((?:rocmkern|examples|tests)/[a-z_/]+(?:\.py)?)`", readme)
    assert links and paths
    assert [name for name in links + paths if not (root / name).exists()] == []


def test_no_number_of_rows_is_given_that_the_next_row_makes_wrong(readme):
    """Of what is said of every row; of parts that ran at some time the number stays true."""
    assert not re.findall(r"every quick row[^|,;.]*\(\d+\)|\ball \d{3,} of", readme)
