"""The accelerators that programs are compiled for where there is none: what XLA needs to know of each, and what makers say."""

from dataclasses import dataclass, field

_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_GPU = {"XLA_FLAGS": "--xla_gpu_enable_triton_gemm=false"}  # whose search for tiles wants a device
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 device_memory_size: 84942979072
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } device_description_str: "NVIDIA H100 80GB HBM3"
"""


@dataclass(frozen=True)
class Target:
    """An accelerator.

    Attributes:
        name: as on the command line, and of the folder of its results.
        device: "tpu" or "gpu", as the lists of environments have it.
        platform: as JAX lowers for it.
        kind: as JAX names the device.
        topology: as its compiler knows it; the first of its devices is compiled for.
        pods: topologies of several devices, for which whole steps are compiled (scaling.py).
        memory_bytes: of one device.
        precision: of clipped sums there.
        environment: variables without which the compiler looks for the device.
        config: XLA's description of a GPU.
        bytes_per_second, operations_per_second: the most that memory and arithmetic do; the latter in full float32, and in what
            tensor cores make of float32 by default.
    """

    name: str
    device: str
    platform: str
    kind: str
    topology: str
    memory_bytes: int
    precision: str
    environment: dict[str, str] = field(default_factory=dict)
    config: str = ""
    bytes_per_second: float = 0.0
    operations_per_second: tuple[float, float] = (0.0, 0.0)
    pods: tuple[str, ...] = ()


TARGETS = {
    target.name: target
    for target in (
        Target(
            "tpu-v5e",
            "tpu",
            "tpu",
            "TPU v5 lite",
            "v5e:2x2",
            16 * 2**30,
            "bfloat16",
            _TPU,
            pods=("v5e:2x2", "v5e:4x4", "v5e:16x16"),
        ),
        Target("tpu-7x", "tpu", "tpu", "TPU7x", "tpu7x:2x2x1", 96 * 2**30, "bfloat16", _TPU),
        # 67 TFLOPS in float32 and 495 in TF32, dense; 3.35 TB/s: NVIDIA's data sheet of the H100 SXM.
        Target(
            "h100",
            "gpu",
            "cuda",
            "NVIDIA H100 80GB HBM3",
            "1x1x1",
            84_942_979_072,
            "tensorfloat32",
            _GPU,
            _H100,
            3.35e12,
            (67e12, 495e12),
        ),
    )
}
