"""The example of another project's matrix, with a wheel of this library in an environment of its own."""

import os
import re
import site
import subprocess
import sys
import venv

import pytest


@pytest.fixture(scope="module")
def python(tmp_path_factory, request):
    """An interpreter that finds the built wheel first, and the packages of this environment that it needs behind it."""
    folder = tmp_path_factory.mktemp("own project")
    built = _run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, request.config.rootpath]
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("rocmkern-*.whl")
    venv.create(folder / "environment", with_pip=False)
    interpreter = folder / "environment" / ("Scripts" if os.name == "nt" else "bin") / "python"
    packages = _run([interpreter, "-c", "import site; print(site.getsitepackages()[0])"]).stdout.strip()
    installed = _run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", packages, wheel])
    assert installed.returncode == 0, installed.stderr
    with open(os.path.join(packages, "behind.pth"), "w", encoding="utf-8") as file:
        file.write("\n".join(site.getsitepackages()))
    return interpreter


@pytest.fixture
def project(python, root):
    """``project(*words)`` runs the interpreter in the example's folder."""

    def run(*words):
        # An outer run's plugins and paths are not the project's.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_") and k != "PYTHONPATH"}
        environment |= {"PYTHONPATH": ".", "ROCMKERN_NO_GPU": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        return _run([python, *words], cwd=root / "examples" / "own_project", env=environment)

    return run


def _run(command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, **options)


def test_the_wheel_is_what_is_tested(project, python):
    assert project("-m", "rocmkern", "--version").returncode == 0
    done = project("-c", "import rocmkern; print(rocmkern.__file__)")
    assert done.stdout.strip().startswith(str(python.parents[1])), done.stdout + done.stderr


def test_its_suite_passes_from_a_built_wheel(project):
    done = project("-m", "pytest", "-p", "no:cacheprovider", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d\d passed", done.stdout) and "outputs within their bounds" in done.stdout


def test_its_drawn_rows_pass_and_its_fault_is_caught(project):
    done = project("-m", "pytest", "-p", "no:cacheprovider", "-q", "--rocmkern-fuzz", "50")
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr
    done = project("-m", "rocmkern", "matrix", "mutate")
    assert done.returncode == 0 and "1 faults, 0 not caught" in done.stdout, done.stdout + done.stderr


def test_its_results_become_a_page(project, tmp_path):
    results, page = tmp_path / "run.json", tmp_path / "page.html"
    done = project("-m", "pytest", "-p", "no:cacheprovider", "-q", "--benchmark-only", "--rocmkern-json", results)
    assert done.returncode == 0, done.stdout + done.stderr
    done = project("-m", "rocmkern", "matrix", "report", results, "--html", page)
    assert done.returncode == 0 and "log_sum_exp-rows-r4096n1024-f32" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words", [["--version"], ["isa", "--list", "--arch", "gfx1100", "--kernel", "softmax"], ["matrix", "validate"],
              ["matrix", "list", "softmax-*"]], ids=" ".join
)  # fmt: skip
def test_commands_in_a_folder_of_their_own(python, tmp_path, words):
    """Without a checkout around, what a command reads by default is what the wheel brings."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_") and k != "PYTHONPATH"}
    done = _run([python, "-m", "rocmkern", *words], cwd=tmp_path, env=environment | {"ROCMKERN_NO_GPU": "1"})
    assert done.returncode == 0 and done.stdout, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
