#!/bin/sh
# A fleet of 50 hosts verified on a Dask cluster of two nodes, which here are two processes on
# loopback. Run it in a checkout after `make demo` or `make test`:
#
#   examples/fleet-two-nodes.sh [FOLDER]
#
# On real machines: start `dask scheduler` on one, and on every node
#
#   dask worker tcp://SCHEDULER:8786 --nworkers auto --nthreads 1 --memory-limit 2GiB
#
# with the same excise installed (pip install 'excise[fleet]'), and give `excise fleet verify` a URL
# that every node can read: a shared file system, s3://, gs://, https://, sftp://.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
bin=${EXCISE_BIN:-$here/.venv/bin}
folder=${1:-$(mktemp -d)}
port=${EXCISE_DASK_PORT:-8786}
scheduler=tcp://127.0.0.1:$port

nodes=
cluster=
cleanup() {
    # The nodes first: one that finds its scheduler gone looks for it for a while.
    for pid in $nodes; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true; done
    [ -z "$cluster" ] || { kill "$cluster" 2>/dev/null && wait "$cluster" 2>/dev/null || true; }
}
trap cleanup EXIT INT TERM

"$bin/python" "$here/benchmarks/fleet_hosts.py" "$folder" --hosts 50 --entries 2000

"$bin/dask" scheduler --host 127.0.0.1 --port "$port" --no-dashboard 2>"$folder/scheduler.log" &
cluster=$!
for node in 1 2; do
    "$bin/dask" worker "$scheduler" --name "node-$node" --nthreads 1 --no-dashboard \
        --local-directory "$folder/dask" 2>"$folder/node-$node.log" &
    nodes="$nodes $!"
done

verify() {
    "$bin/excise" fleet verify "$folder/hosts" --policy "$folder/policy.sha256" \
        --scheduler "$scheduler" --state "$folder/state.sqlite" --results "$folder/results"
}

echo "== first round"
verify
echo "== every host measures six more files; second round"
"$bin/python" "$here/benchmarks/fleet_hosts.py" "$folder" --grow 6
verify
echo "== asked later, without verifying anything"
"$bin/excise" fleet show "$folder/state.sqlite" --not-verified-since 1h
