#!/usr/bin/env sh
# A GKE node pool whose GPUs functions share in tenths: GKE's own plugin sets both MPS limits of a container that asks for
# n of 10. One GPU a node: it takes more than one tenth for one container on such nodes only. Start the gateway and the
# controller with --gpu-host-ipc there, because GKE's MPS daemon is reached by the host's IPC namespace. Not tried.
#
#   sh deploy/gpu/gke-node-pool.sh CLUSTER LOCATION [MACHINE] [GPU]
set -eu
cluster=${1:?name of the cluster}
location=${2:?zone or region}
machine=${3:-g2-standard-8}
gpu=${4:-nvidia-l4}
exec gcloud container node-pools create smoe-gpu --cluster "$cluster" --location "$location" \
  --machine-type "$machine" --num-nodes 1 \
  --accelerator "type=$gpu,count=1,gpu-sharing-strategy=mps,max-shared-clients-per-gpu=10,gpu-driver-version=default"
