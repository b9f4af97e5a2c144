#!/usr/bin/env bash
# Build the functions' image from deploy/function.Dockerfile and run a pipeline in it: image.sh FWATCHDOG PIPELINE_FOLDER.
# FWATCHDOG is of-watchdog, a given program. Needs root and Debian's buildah, debootstrap and iproute2, no container engine
# and no registry of images: the base image is made of Debian's packages. WHEELS names a folder with a CPU-only wheel of
# torch. Two containers, ingress and all stages, each in a network namespace of its own
# (of-watchdog's port for metrics is fixed); the answer must equal the whole model's. Everything ends with it.
set -euo pipefail
watchdog=$(realpath "$1") pipeline=$(realpath "$2") wheels=$(realpath "${WHEELS:-/opt/wheels}")
root=$(realpath "$(dirname "$0")/../../../..")
python=${PYTHON:-$root/.venv/bin/python}
work=$(mktemp -d)
export BUILDAH_ISOLATION=chroot
storage=(--storage-driver vfs --root "$work/images" --runroot "$work/run")
finish() {
  for name in stages ingress; do ip netns pids "smoe-$name" 2>/dev/null | xargs -r kill -9 || true; done
  for name in stages ingress; do ip netns del "smoe-$name" 2>/dev/null || true; done
  ip link del smoe-bridge 2>/dev/null || true
  wait
  buildah "${storage[@]}" rm --all >/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

debootstrap --variant=minbase --include=python3,python3-pip,ca-certificates bookworm "$work/base" >"$work/base.log"
ln -sf python3 "$work/base/usr/bin/python"
rm -f "$work/base/usr/lib/python3.11/EXTERNALLY-MANAGED"
cp /etc/ssl/certs/ca-certificates.crt "$work/base/etc/ssl/certs/"
printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' >"$work/base/etc/pip.conf"
empty() { buildah "${storage[@]}" from scratch; }
base=$(empty) && buildah "${storage[@]}" add -q "$base" "$work/base" / >/dev/null
buildah "${storage[@]}" commit -q "$base" docker.io/library/python:3.11-slim >/dev/null
holder=$(empty) && buildah "${storage[@]}" copy -q "$holder" "$watchdog" /fwatchdog >/dev/null
buildah "${storage[@]}" commit -q "$holder" ghcr.io/openfaas/of-watchdog:0.11.6 >/dev/null

mkdir "$work/tree"
git -C "$root" archive HEAD | tar -x -C "$work/tree"
cp -r "$pipeline" "$work/tree/deploy/pipelines/$(basename "$pipeline")"
buildah "${storage[@]}" bud --pull-never --network host -v "$wheels:/wheels:ro" --build-arg PIP_OPTIONS="--find-links /wheels" \
  -f "$work/tree/deploy/function.Dockerfile" -t smoe/function "$work/tree"

ip link add smoe-bridge type bridge && ip addr add 10.9.0.1/24 dev smoe-bridge && ip link set smoe-bridge up
number=2
for name in stages ingress; do
  ip netns add "smoe-$name"
  ip link add "smoe-$name" type veth peer name eth0 netns "smoe-$name"
  ip link set "smoe-$name" master smoe-bridge up
  ip -n "smoe-$name" addr add "10.9.0.$number/24" dev eth0
  ip -n "smoe-$name" link set eth0 up
  ip -n "smoe-$name" link set lo up
  number=$((number + 1))
done
container() { # NAME, its environment: start it in its namespace
  local name=$1 id
  shift
  id=$(buildah "${storage[@]}" from --pull-never localhost/smoe/function)
  ip netns exec "smoe-$name" buildah "${storage[@]}" run --user app "$@" "$id" -- fwatchdog >"$work/$name.log" 2>&1 &
}
cd "$root"
"$python" -m tests.contract.gateway.conformance.image_environment "$pipeline" http://10.9.0.2:8080 "$work"
mapfile -t stages <"$work/stages.env"
mapfile -t ingress <"$work/ingress.env"
container stages "${stages[@]/#/--env=}"
container ingress "${ingress[@]/#/--env=}"
curl -sf --retry 60 --retry-delay 1 --retry-all-errors http://10.9.0.2:8080/_/ready >/dev/null
curl -sf --retry 60 --retry-delay 1 --retry-all-errors http://10.9.0.3:8080/_/ready >/dev/null
curl -sf -H 'content-type: application/json' -d '{"inputs": "A container answers."}' http://10.9.0.3:8080/ >"$work/answer.json"
"$python" -m tests.contract.gateway.conformance.image_environment --check "$work/answer.json" "$pipeline"
