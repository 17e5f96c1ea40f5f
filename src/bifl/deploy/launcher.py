"""Start one of Flower's programs so that it runs the installed bifl and nothing else, and asks for a token on its port.

    python -P -m bifl.deploy.launcher flower-superlink --port …

Flower 1.41 has no setting for either: its processes install and import whatever bundle of code a run comes with, and start each
other by name. So each of them is started here, with the functions replaced that install and load code, that serve the port and that
start other programs. A program that is not in `PROGRAMS` is not started at all. Clients run none of them, see `supernode`.
"""

from __future__ import annotations

import importlib
import os
import sys
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bifl.deploy import bundle, gate
from bifl.errors import BiflError, RunError

VERSION = "1.41.0"  # of Flower: the functions below are those of no other
ENVIRONMENT = "BIFL_TOKEN"  # where the processes of one server find the token
_CALLS = "flwr.supercore.protobuf.client"


def launched(command: Sequence[str | Path]) -> list[str]:
    """The command line that starts one of Flower's programs through this module."""
    words = [str(word) for word in command]
    if words[0] not in PROGRAMS:
        raise RunError(f"'{words[0]}' is none of Flower's programs that bifl runs: {', '.join(PROGRAMS)}")
    return [sys.executable, "-P", "-m", "bifl.deploy.launcher", *words]


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RunError(f"Flower has no module {name}: install the version that bifl was made for, flwr=={VERSION}") from error


def _replace(owner: str, name: str, make: Callable[[Any], Any]) -> None:
    """Replace what a module of Flower's, or a class `module:class`, calls `name` by something made of it.

    Raises:
        RunError: it is not there: the version is another, and running without the replacement would open a door.
    """
    module, _, inner = owner.partition(":")
    where = getattr(_module(module), inner, None) if inner else _module(module)
    if not hasattr(where, name):
        raise RunError(f"Flower has no {owner}.{name}: install the version that bifl was made for, flwr=={VERSION}")
    setattr(where, name, make(getattr(where, name)))


def _call(module: str, name: str) -> None:
    getattr(_module(module), name)()


class _Children:
    """The module `subprocess`, but that it starts Flower's programs through the launcher, and no others."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def Popen(self, command: Sequence[str], **options: Any) -> Any:
        """Start a program."""
        return self._real.Popen(launched(command), **options)


def _token() -> str:
    token = os.environ.get(ENVIRONMENT, "")
    if not token:
        raise RunError(f"{ENVIRONMENT} is not set: bifl server starts Flower's programs with it")
    return token


def _show_token() -> None:
    """Let every call of this process carry the token."""
    token = _token()

    class Shown:
        def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
            context.request.headers[gate.TOKEN] = token
            return call_next(context)

    def initialise(real: Callable[..., None]) -> Callable[..., None]:
        def with_token(self: Any, base_url: str, *, interceptors: Sequence[Any] = (), **options: Any) -> None:
            real(self, base_url, interceptors=[*interceptors, Shown()], **options)

        return with_token

    _replace(f"{_CALLS}:ProtobufClient", "__init__", initialise)


def _guard(module: str, public: Mapping[str, tuple[str, ...]]) -> None:
    """Put the gate in front of an API of Flower's."""
    token = _token()

    def make(create: Callable[..., Any]) -> Callable[..., gate.Gate]:
        def create_app(*arguments: Any, **options: Any) -> gate.Gate:
            app = create(*arguments, **options)
            return gate.Gate(app, token, public, partial(_registered, app))

        return create_app

    _replace(module, "create_app", make)


def _registered(app: Any, headers: gate.Headers) -> bool:
    """Whether a request is signed with the key of a registered client. Flower checks it again, with the time and the body."""
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    shown = {name.decode("latin-1"): value for name, value in headers}
    try:
        key = b64decode(shown[FLEET_HTTP_PUBLIC_KEY_HEADER.lower()], validate=True)
        signature = b64decode(shown[FLEET_HTTP_SIGNATURE_HEADER.lower()], validate=True)
        if not verify_signature(bytes_to_public_key(key), shown[TIMESTAMP_HEADER.lower()], signature):
            return False
        return app.state.linkstate_factory.state().get_node_id_by_public_key(key) is not None
    except (KeyError, ValueError, TypeError):
        return False


def _superlink() -> None:
    program = "flwr.superlink.cli.flower_superlink"
    _guard("flwr.superlink.main", gate.FLEET)
    _replace(program, "subprocess", _Children)
    _replace(program, "uvicorn", _Bounded)
    _call(program, "flower_superlink")


class _Bounded:
    """The module `uvicorn`, but that its server bounds what a connection may hold."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def run(self, **options: Any) -> None:
        from bifl.deploy.connections import BoundedConnection

        self._real.run(**options | {"http": BoundedConnection, "ws": "none"})


def _superexec() -> None:
    from flwr.supercore.constant import TaskType

    _show_token()
    tasks = frozenset({TaskType.SERVER_APP})
    _replace("flwr.supercore.superexec.plugin.base_exec_plugin:AutoExecPlugin", "supported_task_types", lambda _: tasks)
    _replace("flwr.supercore.superexec.executor.subprocess_executor", "subprocess", _Children)
    _call("flwr.supercore.cli.flower_superexec", "flower_superexec")


def _install_nothing(module: str) -> None:
    """Let a process check the bundle that it was handed, and take the installed app instead of unpacking it."""

    def install(fab: bytes, *_: Any, **__: Any) -> Path:
        bundle.refuse_foreign(bundle.named(fab))
        return bundle.APP

    def dependencies(*_: Any, **__: Any) -> None:
        raise RunError("bifl installs no packages for a run")

    _replace(module, "install_from_fab", lambda _: install)
    _replace(module, "install_app_dependencies", lambda _: dependencies)
    _replace(module, "get_project_dir", lambda _: lambda *names: bundle.APP)


def _serverapp() -> None:
    _show_token()
    _install_nothing("flwr.superlink.runtime.run_serverapp")
    _call("flwr.superlink.cli.flwr_serverapp", "flwr_serverapp")


def _flwr() -> None:
    _show_token()
    _call("flwr.cli.app", "app")


def _register() -> None:
    _show_token()
    _call("bifl.deploy.register_keys", "main")


def _node() -> None:
    _call("bifl.deploy.supernode", "main")


PROGRAMS: Mapping[str, Callable[[], None]] = {
    "flower-superlink": _superlink,
    "flower-superexec": _superexec,
    "flwr-serverapp": _serverapp,
    "flwr": _flwr,
    "register": _register,
    "node": _node,
}


def main() -> None:
    """Run the program that the first argument names, with the others."""
    del sys.argv[0]
    try:
        launched(sys.argv)
        if (found := str(getattr(_module("flwr"), "__version__", "?"))) != VERSION:
            raise RunError(f"this is Flower {found}: install the version that bifl was made for, flwr=={VERSION}")
        PROGRAMS[sys.argv[0]]()
    except BiflError as error:
        print(f"bifl: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
