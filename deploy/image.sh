#!/usr/bin/env bash
# The images of function.Dockerfile and control.Dockerfile, without a registry and without a container engine:
#
#   deploy/image.sh FWATCHDOG [OUT]
#
# FWATCHDOG is of-watchdog, a given program; OUT (dist/) gets function.tar.gz and control.tar.gz for `docker load` or
# `ctr images import`, and their bills of materials. Needs root and Debian's buildah and debootstrap: the base image is
# made of Debian's packages. PIPELINE names a folder to bake in, WHEELS one with a CPU-only wheel of torch, STORE one
# where images are kept afterwards (tests/contract/gateway/conformance/image.sh runs one from there), IMAGES those made,
# ARCHIVES those of them that OUT gets (all).
set -euo pipefail
[ $# -ge 1 ] && [ -x "$1" ] || { echo "say which of-watchdog: deploy/image.sh FWATCHDOG [OUT]" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "only root can make the base image's file system" >&2; exit 2; }
for program in buildah debootstrap; do
  command -v "$program" >/dev/null || { echo "$program is missing: apt-get install $program" >&2; exit 2; }
done
root=$(realpath "$(dirname "$0")/..")
watchdog=$(realpath "$1") out=$(realpath -m "${2:-$root/dist}") wheels=$(realpath -m "${WHEELS:-/opt/wheels}")
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/pyproject.toml")
work=$(mktemp -d)
store=${STORE:-$work/store}
export BUILDAH_ISOLATION=chroot
storage_driver() { # overlay, where STORE's file system can be under one; vfs copies an image for each step
  local try="$store/try"
  mkdir "$try" "$try"/{lower,upper,work,merged}
  local folders="lowerdir=$try/lower,upperdir=$try/upper,workdir=$try/work"
  if mount -t overlay -o "$folders" overlay "$try/merged" 2>/dev/null; then umount "$try/merged" && echo overlay; else echo vfs; fi
  rm -rf --one-file-system "$try"
}
mkdir -p "$out" "$store"
[ -e "$store/driver" ] || storage_driver >"$store/driver"
storage=(--storage-driver "$(cat "$store/driver")" --root "$store/images" --runroot "$store/run")
finish() {
  buildah "${storage[@]}" rm --all >/dev/null || true
  rm -rf --one-file-system "$work"
}
trap finish EXIT

debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$work/base" >"$work/base.log" \
  || { tail "$work/base.log" >&2; exit 1; }
ln -sf python3 "$work/base/usr/bin/python"
rm -rf --one-file-system "$work"/base/var/lib/apt/lists/* "$work"/base/var/cache/apt/* "$work"/base/usr/share/{doc,man,locale}/*
empty() { buildah "${storage[@]}" from scratch; }
base=$(empty) && buildah "${storage[@]}" add -q "$base" "$work/base" / >/dev/null
buildah "${storage[@]}" commit -q --rm "$base" docker.io/library/python:3.11-slim >/dev/null
holder=$(empty) && buildah "${storage[@]}" copy -q "$holder" "$watchdog" /fwatchdog >/dev/null
buildah "${storage[@]}" commit -q --rm "$holder" ghcr.io/openfaas/of-watchdog:0.11.6 >/dev/null
rm -rf "$work/base"

mkdir "$work/tree"
rooms=(moe functions platform_words gateway autoscaler placement smoe simulation evaluation rl)
tar -C "$root" --exclude=__pycache__ -c deploy "${rooms[@]}" | tar -x -C "$work/tree"
[ -z "${PIPELINE:-}" ] || cp -r "$PIPELINE" "$work/tree/deploy/pipelines/$(basename "$PIPELINE")"
options=(--pull-never --network host --format docker -v /etc/ssl/certs/ca-certificates.crt:/etc/ssl/certs/ca-certificates.crt:ro)
[ ! -d "$wheels" ] || options+=(-v "$wheels:/wheels:ro" --build-arg PIP_OPTIONS="--find-links /wheels")
for name in ${IMAGES:-function control}; do
  buildah "${storage[@]}" bud "${options[@]}" -f "$work/tree/deploy/$name.Dockerfile" -t "docker.io/smoe/$name:$version" "$work/tree"
  if [[ " ${ARCHIVES-$name} " == *" $name "* ]]; then
    buildah "${storage[@]}" push -q "docker.io/smoe/$name:$version" "docker-archive:$work/$name.tar:docker.io/smoe/$name:$version"
    gzip -3 -c "$work/$name.tar" >"$out/$name.tar.gz"
    rm "$work/$name.tar"
    du -m "$out/$name.tar.gz"
  fi
  made=$(buildah "${storage[@]}" from --pull-never "docker.io/smoe/$name:$version")
  cp "$(buildah "${storage[@]}" mount "$made")/opt/venv/sbom.json" "$out/$name.sbom.json"
done
