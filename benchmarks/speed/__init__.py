"""Speed: one bench_<op>.py per op, each with floors and the installed peers, all in one run.

    python -m benchmarks.speed -o benchmarks/results            everything, one JSON and one table each
    python -m benchmarks.speed.bench_embed -o embed.json        one of them
    pytest benchmarks/speed --benchmark-json speed.json         the same runs, recorded by pytest-benchmark
    python -m benchmarks.tables                                 the tables of README and docs

pytest-benchmark times one function after the other, which on a machine that drifts compares different
conditions. So `benchmarks.timing.interleaved` is the only clock here: it runs all contestants of a suite in
turn, round after round, and pytest-benchmark is handed those samples (`conftest.py`), for its statistics, its
JSON and its comparisons between runs. The JSON of the first two commands has ratios, formed within rounds.

`audit` and `bulk` are no suites of contestants per op: their JSON has parts of its own, and pytest does not
run them.
"""
