#!/usr/bin/env bash
# Build the functions' image with deploy/image.sh and run a pipeline in it: image.sh FWATCHDOG PIPELINE_FOLDER.
# FWATCHDOG is of-watchdog, a given program. Needs root, what deploy/image.sh needs, and iproute2; no container engine.
# Two containers, ingress and all stages, each with a read-only root, an unprivileged user and a network namespace of its
# own (of-watchdog's port for metrics is fixed); the answer must equal the whole model's. Everything ends with it.
set -euo pipefail
watchdog=$(realpath "$1") pipeline=$(realpath "$2")
root=$(realpath "$(dirname "$0")/../../../..")
python=${PYTHON:-$root/.venv/bin/python}
work=$(mktemp -d)
storage=(--storage-driver vfs --root "$work/images" --runroot "$work/run")
finish() {
  for name in stages ingress; do ip netns pids "smoe-$name" 2>/dev/null | xargs -r kill -9 || true; done
  for name in stages ingress; do ip netns del "smoe-$name" 2>/dev/null || true; done
  ip link del smoe-bridge 2>/dev/null || true
  wait
  for name in stages ingress; do umount -R -l "$work/$name" 2>/dev/null || true; done
  buildah "${storage[@]}" rm --all >/dev/null || true
  rm -rf --one-file-system "$work"
}
trap finish EXIT

STORE=$work PIPELINE=$pipeline "$root/deploy/image.sh" "$watchdog" "$work/out"

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
container() { # NAME, its environment: start it in its namespace as the kubelet does, with /tmp to write to and no more
  local name=$1 made files="$work/$1"
  shift
  made=$(buildah "${storage[@]}" from --pull-never docker.io/smoe/function:0.2.0)
  mkdir "$files"
  mount --bind "$(buildah "${storage[@]}" mount "$made")" "$files"
  mount -t proc proc "$files/proc"
  mount --bind /dev "$files/dev"
  mount -t tmpfs -o mode=1777 tmp "$files/tmp"
  mount -o remount,ro,bind "$files"
  mapfile -t image < <(buildah "${storage[@]}" inspect --format '{{range .OCIv1.Config.Env}}{{println .}}{{end}}' "$made")
  ip netns exec "smoe-$name" chroot --userspec=12000:12000 "$files" /usr/bin/env -i "${image[@]}" HOME=/tmp "$@" \
    sh -c 'cd /home/app && ! touch . 2>/dev/null && exec fwatchdog' >"$work/$name.log" 2>&1 &
}
cd "$root"
"$python" -m tests.contract.gateway.conformance.image_environment "$pipeline" http://10.9.0.2:8080 "$work"
mapfile -t stages <"$work/stages.env"
mapfile -t ingress <"$work/ingress.env"
container stages "${stages[@]}"
container ingress "${ingress[@]}"
curl -sf --retry 60 --retry-delay 1 --retry-all-errors http://10.9.0.2:8080/_/ready >/dev/null
curl -sf --retry 60 --retry-delay 1 --retry-all-errors http://10.9.0.3:8080/_/ready >/dev/null
curl -sf -H 'content-type: application/json' -d '{"inputs": "A container answers."}' http://10.9.0.3:8080/ >"$work/answer.json"
"$python" -m tests.contract.gateway.conformance.image_environment --check "$work/answer.json" "$pipeline"
