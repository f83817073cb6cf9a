"""The example of docs/sharing.md runs as it is printed."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from patience import TIMEOUT_S

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "sharing.md").read_text("utf-8")


@pytest.mark.skipif(shutil.which("curl") is None, reason="the example calls curl")
def test_the_web_workers_go_on_without_their_owner(tmp_path):
    (worker,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (commands,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    (said,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    # an address of this test's own, so that nobody takes a port between here and there
    host = f"127.{os.getpid() % 200 + 1}.{os.getpid() // 200 % 250}.7"
    for port in ("8081", "8082", "8083"):
        with socket.create_server((host, 0)) as free:
            commands = commands.replace(port, str(free.getsockname()[1]))
    assert "127.0.0.1" in worker
    (tmp_path / "web_worker.py").write_text(worker.replace("127.0.0.1", host))
    commands = commands.replace("127.0.0.1", host)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=10 * TIMEOUT_S,
    )
    assert done.stdout.endswith(said), done
    assert "order 0 is stored by the owner\norder 1 is stored by a client\n" in done.stdout
