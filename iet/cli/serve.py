"""`iet serve`: audits over HTTP."""

from __future__ import annotations

import argparse
import ipaddress
import os
import pathlib
import sys
from typing import Any

from iet.cli.options import Commands, add_registry, add_tokenizer, load_registry, name_and_value, secret_mount
from iet.errors import BackendUnavailable, InputError, TokenizerMismatch, check_number, missing
from iet.report.lines import harmless

_LIMITS = {
    "body_bytes": "bytes of a request, and of a line of a batch",
    "batch_bytes": "bytes of a batch",
    "seconds": "seconds for one audit",
    "wait": "seconds to wait for a worker",
    "memory_bytes": "bytes of memory for one audit, on Linux",
    "requests": "requests at once, of all clients",
    "per_client": "requests at once, of the holder of one token",
    "body_seconds": "seconds for a body to arrive, and between two parts of a batch",
    "connections": "connections at once",
    "rate": "questions an hour of an address (--public)",
    "total_rate": "those of all",
}
"""Field of `iet.service.limits.Limits` -> help text."""


def add(commands: Commands) -> None:
    """Add `iet serve`."""
    serve = commands.add_parser("serve", help="audit over HTTP: JSON, batches, and a page to drop files on")
    add_registry(serve)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=int, default=8100, help="port; 0: any free one (default: 8100)")
    serve.add_argument(
        "--tokens", type=pathlib.Path, metavar="FILE", help="file with the hashes of valid bearer tokens"
    )
    serve.add_argument(
        "--add-token",
        metavar="NAME",
        help="draw a token for NAME, add its hash to --tokens, print the token, and end",
    )
    serve.add_argument(
        "--no-auth", action="store_true", help="accept requests without a token, only on a loopback address"
    )
    serve.add_argument(
        "--public",
        action="store_true",
        help="instead of audits, tell anyone whether a text of 200 tokens is marked",
    )
    serve.add_argument(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="a proxy, or network, whose X-Forwarded-For names the client (--public); may be repeated",
    )
    serve.add_argument("--workers", type=int, metavar="N", help="processes (default: the number of cores)")
    add_tokenizer(serve)
    serve.add_argument(
        "--published",
        type=pathlib.Path,
        metavar="INDEX",
        help="index of published text (iet index): its contents are no evidence; it may grow",
    )
    serve.add_argument(
        "--model",
        help="language model to read with, as in iet audit: each worker holds one, and it reads some hundred"
        " tokens a second",
    )
    serve.add_argument(
        "--limit",
        action="append",
        type=name_and_value,
        default=[],
        metavar="NAME=N",
        help="another limit, such as seconds=30; may be repeated: "
        + "; ".join(f"{name}: {description}" for name, description in _LIMITS.items()),
    )
    serve.set_defaults(run=_serve, check=_check)


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.add_token is not None and arguments.tokens is None:
        parser.error("--add-token takes --tokens FILE")
    if arguments.public:
        if arguments.tokens is not None or arguments.no_auth or arguments.model is not None:
            parser.error("--public takes no --tokens, --no-auth or --model")
    elif arguments.trusted_proxy:
        parser.error("--trusted-proxy takes --public")
    elif (arguments.tokens is None) is not arguments.no_auth:
        parser.error("expected --tokens FILE, --public or, for this machine alone, --no-auth")


def _serve(arguments: argparse.Namespace) -> int:
    try:
        from iet.audit.worker_pool import ONE_THREAD
        from iet.service import app, audits, credentials, limits, public, server
    except ImportError as error:
        raise missing(f"iet serve needs {error.name}", "service") from None
    import iet

    if arguments.add_token is not None:
        print(credentials.add_token(arguments.tokens, arguments.add_token))
        return 0
    workers = arguments.workers if arguments.workers is not None else _cores()
    check_number("workers", workers, 1, 1024)
    unknown = [name for name, _ in arguments.limit if name not in _LIMITS]
    if unknown:
        raise InputError(f"--limit: got {unknown[0]!r}, expected one of {', '.join(_LIMITS)}")
    defaults = public.LIMITS if arguments.public else {}
    request_limits = limits.Limits(**{**defaults, **dict(arguments.limit)})
    for proxy in arguments.trusted_proxy:
        _check_network(proxy)
    registry = load_registry(arguments)
    path: Any = registry.path
    tokenizers = _tokenizers(arguments.tokenizer or [], registry)
    _check_tokenizers(registry, tokenizers)
    files = audits.AuditFiles(path, secret_mount(), tokenizers, arguments.published, arguments.model)
    # Refuses files that no worker could use.
    iet.Auditor(registry, published=arguments.published, model=arguments.model)
    service: app.AuditService
    if arguments.public:
        service = public.PublicService(files, request_limits, workers)
        application = public.application(service)
    else:
        tokens = None if arguments.no_auth else credentials.Credentials(arguments.tokens)
        service = app.AuditService(files, tokens, request_limits, workers)
        application = app.application(service)
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)
    listening = server.listen(arguments.host, arguments.port, loopback=arguments.no_auth)
    host, port = listening.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    print(harmless(f"iet: serving {path} on {address}, workers: {workers}"), file=sys.stderr, flush=True)
    server.log_to_stderr()
    server.run(service, application, listening, arguments.trusted_proxy)
    return 0


def _check_network(text: str) -> None:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise InputError(f"--trusted-proxy: got {text!r:.80}, expected an address or a network") from None


def _tokenizers(entries: list[str], registry: Any) -> dict[str, str]:
    paths = dict[str, str]()
    for entry in entries:
        id, equals, path = entry.partition("=")
        id, path = (id, path) if equals and id in registry.profiles else ("", entry)
        if id in paths:
            raise InputError(f"--tokenizer: got {entry!r} beside another one, expected one for each profile")
        paths[id] = path
    return paths


def _check_tokenizers(registry: Any, paths: dict[str, str]) -> None:
    """Raise an error if a tokenizer of the command line is wrong, or no profile has a tokenizer."""
    error, readable = None, 0
    for id, profile in registry.profiles.items():
        if profile.tokenizer_digest is None:
            readable += 1  # its token ids are
            continue
        try:
            registry.open_tokenizer(id, paths.get(id) or paths.get(""))
            readable += 1
        except (TokenizerMismatch, BackendUnavailable) as problem:
            if id in paths:
                raise
            error = problem
    if error is not None and not readable:
        raise error


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
