"""The tools of planning and running: toolchain, supported flags, caches."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.artifacts.registry_file import Registry
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.artifacts.transfer import Policy
from iree_gauntlet.cache_folders import find_cache_folder, find_toolchains_folder, make_cache_folder
from iree_gauntlet.engine.modules.module_cache import ModuleCache
from iree_gauntlet.engine.modules.module_key import flag_ingredients, make_key
from iree_gauntlet.engine.modules.shared_modules import SharedModules, shared_modules
from iree_gauntlet.engine.plan import PlanContext
from iree_gauntlet.engine.rounds.machine_lock import require_lock_folder
from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.formatting import parse_bytes
from iree_gauntlet.measuring.instructions.counters import find_counter
from iree_gauntlet.requests import ExecutionRequest, NetworkRequest, ToolchainRequest
from iree_gauntlet.settings import Configuration, find_project_folder, find_settings_files
from iree_gauntlet.steps import CacheLookup
from iree_gauntlet.toolchains.devices import read_host_cpu, targets_host_cpu
from iree_gauntlet.toolchains.find import find_requested_toolchain, make_toolchain_locations
from iree_gauntlet.toolchains.flags import NO_FLAGS, Translation, read_known_flags, translate
from iree_gauntlet.toolchains.target_runtimes import find_target_runtime
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.progress import Progress
    from iree_gauntlet.toolchains.find import ToolchainLocations
    from iree_gauntlet.toolchains.flags import FlagSet
    from iree_gauntlet.toolchains.toolchain import Toolchain


@dataclass(frozen=True, slots=True)
class Workbench:
    """An IREE and the caches that a command works with.

    Attributes:
        toolchain_error: the error that explains why there is no IREE; None if there is an IREE.
        known_flags: the flags that each tool of the IREE supports.
        shared_modules: the module store that several machines share; None if there is none.
        toolchain_place: the toolchain's location, which this process uses for as long as this object lives.
    """

    toolchain: Toolchain | None
    toolchain_error: ToolchainError | None
    known_flags: Mapping[str, FlagSet]
    cache_dir: Path
    store: ArtifactStore
    modules: ModuleCache
    shared_modules: SharedModules | None
    toolchain_place: ToolchainLocations

    @property
    def iree(self) -> Toolchain:
        """The IREE; only for workbenches that were opened with `need_toolchain`."""
        if self.toolchain is None:
            raise RuntimeError("a workbench without an IREE")
        return self.toolchain

    @property
    def release(self) -> str:
        """The compiler's release; empty if there is no IREE."""
        return self.toolchain.compiler.release if self.toolchain else ""

    def get_flags(self, tool: str) -> FlagSet:
        """Return the flags that a tool of the toolchain supports."""
        return self.known_flags[tool]


def open_workbench(
    request: ToolchainRequest,
    progress: Progress,
    network: NetworkRequest = NetworkRequest(),
    *,
    need_toolchain: bool,
    read_only: bool = False,
    importer: bool = False,
    prefer_path: bool = False,
) -> Workbench:
    """Find the toolchain and open the caches; if the toolchain is a release that is not installed, install it.

    Args:
        request: the IREE to use, and the folder of the caches.
        progress: the display of downloads.
        network: options of fetching files.
        need_toolchain: if true, a missing toolchain is an error; if false, nothing is installed.
        read_only: if true, nothing will run, so the folders of caches and locks need not exist.
        importer: if true, ONNX programs are to be imported.
        prefer_path: if true, tools on the PATH come before installed ones, unless the request names an IREE.

    Raises:
        ToolchainError: there is no IREE although `need_toolchain` is true.
        UsageError: `--iree` names no IREE, or the folder of the cache or of locks cannot be made.
        GauntletError: the registry of artifacts cannot be read.
    """
    if not read_only:
        require_lock_folder(os.environ)
    cache_dir = (find_cache_folder if read_only else make_cache_folder)(request.cache_dir)
    configuration = Configuration(environ=os.environ)
    if find_settings_files(find_project_folder(), os.environ):
        # Most projects have none, and the classes of their tables take as long to define as a small suite to plan.
        from iree_gauntlet.dialects.configuration_file import read_configuration  # noqa: PLC0415

        configuration = read_configuration(find_project_folder(), os.environ)
    store = ArtifactStore(
        cache_dir,
        Registry.of_project(find_project_folder()),
        offline=network.offline,
        progress=progress,
        configuration=configuration,
        policy=Policy(
            configuration.connections,
            retries=configuration.retries,
            stall_timeout=network.timeout_stall,
            max_bytes=parse_bytes(network.max_download, "--max-download") if network.max_download else None,
        ),
    )
    offline = network.offline or not need_toolchain
    toolchain_place = make_toolchain_locations(
        find_toolchains_folder(),
        cache_dir,
        configuration,
        Leases,
        store.hash_cache.sha256,
        offline=offline,
        importer=importer,
    )
    toolchain: Toolchain | None = None
    toolchain_error: ToolchainError | None = None
    try:
        toolchain = find_requested_toolchain(request, os.environ, toolchain_place, prefer_path=prefer_path)
    except ToolchainError as error:
        if need_toolchain:
            raise
        toolchain_error = error
    known_flags = read_known_flags(toolchain, cache_dir) if toolchain else NO_FLAGS
    shared_store = shared_modules(store.configuration, offline=network.offline)
    return Workbench(
        toolchain, toolchain_error, known_flags, cache_dir, store, ModuleCache(cache_dir), shared_store, toolchain_place
    )


def _explain_no_calls(toolchain: Toolchain) -> str:
    """Return why a toolchain's Python cannot make several calls by its runtime; empty if it can."""
    if not toolchain.compiler.python:
        return (
            "iree-run-module makes one call, and this IREE has no Python bindings that make several: "
            "build it with -DIREE_BUILD_PYTHON_BINDINGS=ON"
        )
    if toolchain.compiler.source != toolchain.runtime.source:
        return f"several calls are made by the Python bindings of one IREE, but these are two: {toolchain.source}"
    return ""


def make_plan_context(
    workbench: Workbench, run_dir: Path, options: ExecutionRequest = ExecutionRequest()
) -> PlanContext:
    """Return the facts that planning needs, from the workbench and the options for running steps."""
    toolchain = workbench.toolchain

    def translate_flags(flags: Sequence[str], tool: str) -> Translation:
        return translate(flags, workbench.known_flags[tool], tool) if toolchain else Translation(tuple(flags), (), ())

    def lookup(name: str, ingredients: Mapping[str, str]) -> CacheLookup:
        if toolchain is None:
            return CacheLookup(reason="no IREE here: its identity is part of the key")
        key = make_key(ingredients)
        result = workbench.modules.lookup(key)
        if result.entry is not None:
            return CacheLookup(key, hit=True, reason="in the cache")
        return CacheLookup(key, reason=result.note or workbench.modules.explain_miss(name, ingredients))

    compiler = toolchain.compiler.identity if toolchain else ""
    # IREE's own linker is in the directory of its compiler.
    linker = Path(toolchain.compiler.compile).with_name("iree-lld") if toolchain else None
    return PlanContext(
        run_dir=run_dir,
        compile=toolchain.compiler.compile if toolchain else "iree-compile",
        runtime_of=cache(lambda target: find_target_runtime(target, toolchain, workbench.toolchain_place)),
        python=(toolchain.compiler.python if toolchain else "") or "python",
        import_script=str(Path(iree_side.__file__).with_name("import_onnx.py")),
        calls_obstacle=_explain_no_calls(toolchain) if toolchain else "",
        own_python=sys.executable,
        reference_script=str(Path(iree_side.__file__).with_name("run_reference.py")),
        onnxruntime=onnxruntime_version(),
        tflite_script=str(Path(iree_side.__file__).with_name("import_tflite.py")),
        tflite_importer=find_tflite_importer(),
        ir_tool=toolchain.compiler.ir_tool if toolchain else "",
        importer=f"{compiler} onnx {toolchain.compiler.onnx_version if toolchain else ''}",
        compiler_identity=compiler,
        runtime_identity=toolchain.runtime.identity if toolchain else "",
        linker=str(linker) if linker is not None and linker.is_file() else "",
        translate=translate_flags,
        # Results are cached, since many steps have the same file.
        artifact_path=cache(workbench.store.path),
        artifact_hash=cache(workbench.store.get_known_hash),
        flag_ingredients=lambda flags, folder: flag_ingredients(
            flags, workbench.store.hash_cache.sha256, folder=Path(folder)
        ),
        identify_host_cpu=lambda flags: read_host_cpu().identity if targets_host_cpu(flags) else "",
        lookup=lookup,
        counter=cache(partial(find_counter, options.counter, options.count_cpu)),
        timeouts=dict(options.timeouts),
        force_recompile=options.force_recompile,
        # The user's PYTHONPATH must not replace the importer of the chosen IREE.
        python_env=(("PYTHONPATH", toolchain.compiler.site_packages),)
        if toolchain and os.environ.get("PYTHONPATH")
        else (),
    )


def onnxruntime_version() -> str:
    """Return the version of onnxruntime in this interpreter; empty if it is not installed."""
    return _find_version("onnxruntime")


def find_tflite_importer() -> str:
    """Return the name and version of TFLite's importer in this interpreter; empty if it is not installed."""
    name = "tosa-converter-for-tflite"
    version = _find_version(name)
    return f"{name} {version}" if version else ""


def _find_version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
