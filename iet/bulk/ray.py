"""Audits on Ray Data, for more than one machine.

    from iet.bulk.ray import IETAudit

    ds.map_batches(
        IETAudit,
        fn_constructor_kwargs={"registry": "team.json", "decoder": "cusum"},
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=16),
    )

Every actor loads the registry once, from its own machine's disk: keys are in no object store.
"""

from __future__ import annotations

import os
from typing import Any

from iet.audit.worker_pool import ONE_THREAD
from iet.bulk.arrow import Annotator


class IETAudit(Annotator):
    """An `iet.bulk.arrow.Annotator` as the actor of `Dataset.map_batches`, with one thread for its one CPU.

    Args:
        registry: path of a registry file.
        text_column, ids_column, prefix, options: as in `Annotator`.
    """

    def __init__(self, registry: str | os.PathLike[str], **arguments: Any) -> None:
        os.environ |= ONE_THREAD
        super().__init__(os.fspath(registry), **arguments)
