"""What one GPU does with our memory: the contract, the faults, what calls cost, and what only a real driver can say.

    make gpu-check            or  python -m benchmarks.gpu_check [--device cuda:0] [--only calls growth] [--seconds 300]

Needs torch, cuda-bindings, msgpack, pydantic and pytest; imports the project from its source tree. It ends after five
minutes: parts get what is left of them, and those for which there is none are skipped. Each part runs in
a process of its own, so that one that fails, hangs or loses its context stops no other. Without a GPU the parts run on
the stand-in library as far as that goes, and the rest says why it was skipped. A part that needs a kernel brings its
own, in PTX, which the driver compiles; torch is used for the attention alone.

This is no test of speed: figures are for the reader, and only a broken rule fails a part.
"""
