"""What shows that the endpoint holds: overload, hostile clients, deaths, shared memory, streaming.

Each `python -m benchmarks.serving.NAME` starts an endpoint of its own on loopback, or takes `--url` of one that runs,
and prints one JSON object as its last line, like every benchmark. The clients are plain asyncio streams: the generator
shares the cores with what it measures, so it has to cost little.
"""
