"""Ray and nothing else: each actor decodes, calls its service, and encodes. What they do is in `kvcluster.services`.

Classes here are undecorated; `ray.remote(Class)` is said where they are created (`actors.devices`, `actors.workers`).
"""
