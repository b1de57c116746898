#!/usr/bin/env bash
# Usage: sanitize.sh PYTHON FOLDER. Compiles the kernels with gcc's sanitizers for addresses and undefined behaviour into a copy of the
# project, and runs there the tests that give them strangers' bytes. SEED_SECONDS makes the search longer.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/$1
folder=$(mkdir -p "$2" && cd "$2" && pwd)
git ls-files -z --cached --others --exclude-standard | xargs -0 tar c | tar x -C "$folder"
cd "$folder"
include=$("$python" -c "import sysconfig; print(sysconfig.get_path('include'))")
kernels=(kafka/records/_kernel formats/avro/_kernel formats/json/_read_kernel formats/json/_write_kernel)
for kernel in "${kernels[@]}"; do
    gcc -shared -fPIC -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined \
        -DPy_LIMITED_API=0x030B0000 "-I$include" "spark_kafka_native/$kernel.c" -o "spark_kafka_native/$kernel.abi3.so"
done
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
sanitized() {
    LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" PYTHONPATH=$folder:$folder/tests "$python" "$@"
}
# A kernel that can't be loaded is replaced by its twin, and nothing would be tried.
for kernel in "${kernels[@]}"; do
    sanitized -c "import spark_kafka_native.${kernel//\//.} as one; assert one.__file__.startswith('$folder/'), one.__file__"
done
sanitized -m pytest --quiet --capture=no -p no:randomly -p no:cacheprovider -m "not soak" -k "not bombs" \
    tests/property/test_avro.py tests/unit/formats/avro tests/property/test_json_written.py tests/unit/formats/test_json_write.py \
    tests/property/test_json_read.py tests/unit/formats/test_json_reader.py tests/property/test_records_hostile.py tests/unit/kafka/records
