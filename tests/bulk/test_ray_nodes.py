"""Audits on two nodes of Ray, with one killed during the run."""

from __future__ import annotations

import itertools
import os
import pathlib
import threading
import time

import pyarrow as pa
import pytest

from iet.audit.auditor import Auditor
from iet.marks.registry import Registry
from tests.support.bulk_documents import documents
from tests.support.conditions import posix


@posix
@pytest.mark.skipif(
    "IET_RAY_NODES" not in os.environ, reason="takes a minute: IET_RAY_NODES=1, as in .ci/rest"
)
def test_a_node_that_is_killed_loses_and_doubles_nothing(
    registry: Registry, auditor: Auditor, tmp_path: pathlib.Path
) -> None:
    """The node dies with one batch done, and another one at work."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from iet.bulk.ray import IETAudit

    texts = documents(registry) * 2
    batch = pa.RecordBatch.from_pydict({"text": texts})
    expected = [
        {f"iet_{name}": value for name, value in row.items()}
        for row in auditor.audit_batch(batch).to_pylist()
    ]
    blocks = [pa.table({"text": [texts[i]], "n": [i]}) for i in range(len(texts))]
    noted = tmp_path / "noted"
    noted.mkdir()

    memory = 100 << 20
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "include_dashboard": False, "object_store_memory": memory},
    )
    try:
        doomed = cluster.add_node(num_cpus=1, object_store_memory=memory)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        doomed_id = doomed.node_id

        def begun() -> int:
            return len(list(noted.glob(f"{doomed_id}-*")))

        class Noted(IETAudit):
            """Notes each batch. The doomed node never ends its second one; the other node waits for it."""

            def __call__(self, table: pa.Table) -> pa.Table:
                here = ray.get_runtime_context().get_node_id()
                (noted / f"{here}-{os.urandom(8).hex()}").touch()
                audited = super().__call__(table)
                while (begun() > 1) == (here == doomed_id):
                    time.sleep(0.05)
                return audited

        def kill() -> None:
            while begun() < 2:
                if over.wait(0.05):
                    return
            cluster.remove_node(doomed, allow_graceful=False)
            killed.set()

        # An actor on each node; if the node is gone, the actor restarts on the other one.
        nodes = (cluster.head_node.node_id, doomed_id)
        addresses = itertools.cycle([NodeAffinitySchedulingStrategy(node, soft=True) for node in nodes])
        over, killed = threading.Event(), threading.Event()
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            rows = ray.data.from_arrow(blocks).map_batches(
                Noted,
                fn_constructor_kwargs={"registry": str(registry.path), "decoder": "cusum"},
                batch_format="pyarrow",
                batch_size=None,
                compute=ray.data.ActorPoolStrategy(size=2),
                ray_remote_args_fn=lambda: {"scheduling_strategy": next(addresses)},
            )
            rows = sorted(rows.take_all(), key=lambda row: row["n"])
        finally:
            over.set()
            killer.join()
        assert killed.is_set()
        assert len(list(noted.iterdir())) > len(texts)  # the lost batch was repeated
        assert len([node for node in ray.nodes() if node["Alive"]]) == 1
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert [row["n"] for row in rows] == list(range(len(texts)))
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected
