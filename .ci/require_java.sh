#!/usr/bin/env bash
# Says plainly what is missing when Java 17 or newer is not there. Looks where Spark looks: JAVA_HOME, then PATH.
set -euo pipefail

advice="Java 17 or newer is needed, by Spark and by the Kafka broker of demo and tests.
Install a JDK (Debian, Ubuntu: apt-get install openjdk-17-jdk-headless; macOS: brew install openjdk@17)
and put it on PATH or name it in JAVA_HOME."

if [ -n "${JAVA_HOME:-}" ]; then
    java=$JAVA_HOME/bin/java
else
    java=$(command -v java || true)
fi
if [ -z "$java" ] || ! said=$("$java" -version 2>&1); then
    printf '%s\n%s\n' "No Java that runs was found (JAVA_HOME is ${JAVA_HOME:-not set})." "$advice" >&2
    exit 1
fi
major=$(printf '%s\n' "$said" | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
if [ "${major:-0}" -lt 17 ]; then
    printf '%s\n%s\n' "$java is too old: $(printf '%s\n' "$said" | head -n 1)" "$advice" >&2
    exit 1
fi
