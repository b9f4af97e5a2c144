# A function of a pipeline on GPUs: the function image whose torch is a CUDA build, which PyPI's for Linux on x86-64 is.
#
#   docker build -f deploy/function.Dockerfile -t smoe/function:plain .
#   docker build -f deploy/function-cuda.Dockerfile --build-arg FUNCTION_IMAGE=smoe/function:plain -t smoe/function .
#
# The driver's libraries come from the node (NVIDIA's container runtime). A function computes on the GPU where it has a
# share of one (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE) or smoe_device=cuda, else on the CPU, so one image serves both.

ARG FUNCTION_IMAGE=smoe/function:plain
FROM ${FUNCTION_IMAGE}

RUN ["python", "-c", "import torch; assert torch.version.cuda, f'torch {torch.__version__} was built without CUDA: build the function image without PIP_OPTIONS'"]

ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    CUDA_MODULE_LOADING=LAZY
