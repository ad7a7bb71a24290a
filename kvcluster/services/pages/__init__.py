"""Host pages as an owner of memory: sequences of many clients over one pool, with fork and copy-on-write."""
