"""How many devices a process of JAX has: as many as there are, or the host's processor divided into as many as are asked for."""

import os
import subprocess
import sys


def devices_here() -> tuple[str, int]:
    """JAX's platform and the number of its devices, without starting it in this process."""
    ask = "import jax; print(jax.default_backend(), jax.device_count())"
    platform, number = said_by([sys.executable, "-c", ask], dict(os.environ)).split()
    return platform, int(number)


def environment_with(count: int, *, forced: bool) -> dict[str, str]:
    """The environment of a process that has so many devices: of the host's processor if forced, else the first GPUs."""
    if not forced:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        return os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(visible.split(",")[:count])}
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}".strip()
    return os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


def said_by(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} failed:\n{done.stderr}")
    return done.stdout
