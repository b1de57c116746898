"""What the end-to-end benchmarks share: topics, contenders in processes of their own, rounds and tables.

Nothing here is part of the package, and no contender shares a process with another one.
"""
