import subprocess
import sys
from pathlib import Path

from spark_kafka_native.testing.java import cache_folder, locked


def test_xdg_cache_home(tmp_path, monkeypatch):
    monkeypatch.delenv("SPARK_KAFKA_NATIVE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "spark-kafka-native"
    assert cache_folder().is_dir()


def test_home_without_xdg(tmp_path, monkeypatch):
    monkeypatch.delenv("SPARK_KAFKA_NATIVE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_folder() == tmp_path / ".cache" / "spark-kafka-native"


def test_own_variable_wins(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_KAFKA_NATIVE_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"


def test_lock_keeps_other_processes_out_until_its_holder_is_killed(tmp_path):
    lock = tmp_path / "lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path\n"
            "from spark_kafka_native.testing.java import locked\n"
            "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)",
            str(lock),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "held\n"
    waiter = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path\n"
            "from spark_kafka_native.testing.java import locked\n"
            "with locked(Path(sys.argv[1])): print('held', flush=True)",
            str(lock),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        waiter.wait(1.5)
        raise AssertionError("two processes held the lock")
    except subprocess.TimeoutExpired:
        pass
    holder.kill()
    assert waiter.communicate(timeout=60)[0] == "held\n"
    holder.communicate()
    with locked(lock):
        pass
