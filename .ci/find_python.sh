#!/usr/bin/env bash
# Usage: find_python.sh 3.12. Prints the path of that Python, from PATH or pyenv's folder; fails where there is none.
# pyenv puts a command for each Python on PATH that ends with an error unless this Python is chosen: so it is tried.
for found in "python$1" "$HOME/.pyenv/versions/$1".*/bin/python; do
    "$found" -c "" 2>/dev/null && command -v "$found" && exit
done
exit 1
