"""What the README claims: its screen of the API says where it ran, what it names exists, it is short."""

import re
import subprocess
import sys

import rocmkern


def _block(readme: str, number: int) -> str:
    return re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)[number]


def test_the_api_in_one_screen_runs(readme, tmp_path, monkeypatch):
    script = tmp_path / "screen.py"
    script.write_text(_block(readme, 0))
    monkeypatch.setenv("ROCMKERN_TARGET", "python")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "TargetInfo(name='python'" in done.stdout


def test_every_operation_in_the_table_exists(readme):
    rows = re.findall(
        r"^\| (?:attention|its steps|positions|norms, rows|MLP|quantized weights|tokens) \| (.*)", readme, re.M
    )
    names = {name for row in rows for name in re.findall(r"`([a-zA-Z_]+)`", row)}
    assert len(rows) == 7 and len(names) > 25
    assert names <= set(rocmkern.__all__)


def test_linked_files_and_named_paths_exist(readme, root):
    links = re.findall(r"\]\(([^)#:]+)\)", readme)
    paths = re.findall(r"`((?:rocmkern|examples|tests)/[a-z_/]+(?:\.py)?)`", readme)
    assert len(links) > 10
    assert [name for name in links + paths if not (root / name).exists()] == []


def test_it_is_what_a_newcomer_reads(readme):
    """Measurements and the rest have pages of their own."""
    assert len(readme.split()) < 1300


def test_the_two_commands_are_targets_of_the_makefile(readme, root):
    commands = re.findall(r"^make (\w+) +#", readme, re.MULTILINE)
    assert commands == ["demo", "test"]
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    assert [name for name in commands if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []
