#!/usr/bin/env bash
# Runs every check and test of Odradek, and first installs what they need and this machine lacks.
#
# Needs a Rust toolchain. As root on Debian or Ubuntu the packages are installed; elsewhere the missing ones are named.
# Apache Kafka's jars go to a cache outside the source tree and are fetched once. The last line gives the totals.
set -u -o pipefail
cd "$(dirname "$0")" || exit 1

export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 RUST_BACKTRACE="${RUST_BACKTRACE:-0}"
KAFKA_VERSION=4.4.0
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/odradek"
export ODRADEK_KAFKA_LIBS="$CACHE/kafka-$KAFKA_VERSION/libs"
LOG="$(mktemp)"
trap 'rm -f "$LOG"' EXIT

passed=0 failed=0 skipped=0
failures=()

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }

finish() {
    for failure in ${failures[@]+"${failures[@]}"}; do say "FAILED: $failure"; done
    [ $((passed + failed)) -gt 0 ] || { say "no test ran"; failed=1; }
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" -eq 0 ]
    exit
}

# check NAME COMMAND...: one check that passes or fails as a whole.
check() {
    local name=$1
    shift
    say "$name"
    if "$@" >"$LOG" 2>&1; then
        passed=$((passed + 1))
    else
        cat "$LOG"
        failed=$((failed + 1))
        failures+=("$name")
    fi
}

# give_up WHY: nothing can be tested without it.
give_up() {
    say "$1"
    failed=$((failed + 1))
    failures+=("$1")
    finish
}

install_packages() {
    local missing=()
    need() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
    need cc build-essential
    need make build-essential
    need g++ build-essential
    need pkg-config pkg-config
    need setpriv util-linux
    need ip iproute2
    need losetup mount
    need mkfs.ext4 e2fsprogs
    need fusermount3 fuse3
    need kcat kcat
    need java default-jdk-headless
    need mvn maven
    need javac default-jdk-headless
    need python3 python3-venv
    python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
    [ -e /usr/include/zlib.h ] || missing+=(zlib1g-dev)
    # librdkafka's tests are built with these.
    [ -e /usr/include/openssl/ssl.h ] || missing+=(libssl-dev)
    [ -e /usr/include/zstd.h ] || missing+=(libzstd-dev)
    [ -e /usr/include/rapidjson/schema.h ] || missing+=(rapidjson-dev)
    [ ${#missing[@]} -gt 0 ] || return 0
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        say "please install: ${missing[*]}"
        return 1
    fi
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -q update && apt-get -q install -y --no-install-recommends "${missing[@]}"; } >"$LOG" 2>&1 ||
        { tail -n 30 "$LOG"; return 1; }
}

install_rust_components() {
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return 0
    say "installing rustfmt and clippy"
    rustup component add rustfmt clippy >"$LOG" 2>&1 || { cat "$LOG"; return 1; }
}

# fetch_jars WHAT DIRECTORY JAR POM...: what a POM names, unless that jar is there already.
fetch_jars() {
    local what=$1 directory=$2 jar=$3
    shift 3
    [ -e "$directory/$jar" ] && return 0
    say "fetching $what, once"
    local unfinished="$directory.unfinished.$$"
    mkdir -p "$unfinished"
    for attempt in 1 2 3; do
        if mvn -B -q -f "$@" dependency:copy-dependencies -DincludeScope=runtime \
            -DoutputDirectory="$unfinished" >"$LOG" 2>&1; then
            rm -rf "$directory"
            mv "$unfinished" "$directory"
            return
        fi
        say "attempt $attempt failed"
    done
    tail -n 30 "$LOG"
    rm -rf "$unfinished"
    return 1
}

fetch_kafka() {
    fetch_jars "Apache Kafka $KAFKA_VERSION (about 90 jars)" "$ODRADEK_KAFKA_LIBS" \
        "kafka-clients-$KAFKA_VERSION.jar" compat-tests/kafka/pom.xml || return
    local version
    for version in 4.3.1 4.2.1; do
        fetch_jars "Kafka Streams $version and its tests" "$(dirname "$ODRADEK_KAFKA_LIBS")/streams-$version" \
            "kafka-streams-$version-test.jar" compat-tests/kafka/streams/pom.xml "-Dkafka.version=$version" || return
    done
}

# Runs the tests of the workspace and adds up what each of their programs reports.
run_tests() {
    say "all tests"
    local status=0 before=$failed
    cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$LOG" || status=$?
    while read -r p f s; do
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    done < <(sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed; ([0-9]+) ignored;.*/\1 \2 \3/p' "$LOG")
    mapfile -t -O "${#failures[@]}" failures < <(sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p' "$LOG")
    if [ "$status" -ne 0 ] && [ "$failed" -eq "$before" ]; then
        failed=$((failed + 1))
        failures+=("cargo test ended with $status")
    fi
}

command -v cargo >/dev/null || give_up "a Rust toolchain is needed (cargo is not in PATH)"
install_packages || give_up "packages are missing"
install_rust_components || give_up "rustfmt or clippy is missing"
fetch_kafka || give_up "Apache Kafka's jars could not be fetched"
check "rustfmt" cargo fmt --all --check
check "clippy, warnings denied" cargo clippy --quiet --workspace --all-targets --locked -- -D warnings
check "rustdoc, warnings denied" env RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps --locked
say "building the broker"
cargo build --quiet --locked --package odradek --bin odradek || give_up "the broker does not build"
ODRADEK_BIN="$(cargo metadata --format-version 1 --locked --no-deps |
    sed -nE 's/.*"target_directory":"([^"]*)".*/\1/p')/debug/odradek"
export ODRADEK_BIN
run_tests
finish
