#!/usr/bin/env bash
# Run OpenFaaS's certifier against a fresh gateway: certify.sh FAAS_CLI CERTIFIER_TEST [flags of the certifier].
# FAAS_CLI and CERTIFIER_TEST (the certifier's tests as one program) are given. With prometheus and prometheus-alertmanager
# on PATH the alerts that the scaling test waits for are there too. Everything ends with it.
set -euo pipefail
cli=$(realpath "$1") certifier=$(realpath "$2")
shift 2
here=$(dirname "$(realpath "$0")")
python=${PYTHON:-$here/../../../../.venv/bin/python}
work=$(mktemp -d)
export HOME=$work OPENFAAS_CONFIG=$work/openfaas OMP_NUM_THREADS=1
pids=()
finish() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$work"
}
trap finish EXIT

cd "$here/../../../.." # the images of the table are modules of this tree
"$python" -m gateway --state "$work/state" --port 18080 --metrics-port 18082 \
  --image docker.io/theaxer/redirector=tests.contract.gateway.entries:redirector \
  --image test/echo=tests.unit.gateway.process.entries:echo >"$work/gateway.log" 2>&1 &
pids+=($!)
for _ in $(seq 300); do [ -f "$work/state/gateway.json" ] && break; sleep 0.1; done
"$cli" login --gateway http://127.0.0.1:18080 --username admin --password-stdin \
  <"$work/state/secrets/basic-auth-password"

if command -v prometheus >/dev/null && command -v prometheus-alertmanager >/dev/null; then
  cp "$here"/*.yml "$work/state/secrets/basic-auth-password" "$work"
  prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/tsdb" \
    --web.listen-address=127.0.0.1:18090 >"$work/prometheus.log" 2>&1 &
  pids+=($!)
  prometheus-alertmanager --config.file="$work/alertmanager.yml" --storage.path="$work/alerts" \
    --cluster.listen-address= --web.listen-address=127.0.0.1:18093 >"$work/alertmanager.log" 2>&1 &
  pids+=($!)
else
  echo "note: prometheus or prometheus-alertmanager is missing; Test_ScaleUpAndDownFromThroughPut cannot pass"
fi

cd "$work"
"$certifier" -test.v -gateway=http://127.0.0.1:18080 -enableAuth "$@"
