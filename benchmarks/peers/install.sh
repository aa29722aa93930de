#!/bin/sh
# An environment for each peer, so that their pinned dependencies do not clash with ours or with each other's.
# Usage: benchmarks/peers/install.sh [python [NAME...]]      NAME: only these. Give pip a CPU build of torch, or it brings gigabytes of CUDA along.
set -eu
python=${1:-python3}
[ $# -gt 0 ] && shift
only="$*"

wanted() { # is this peer among the names given?
    [ -z "$only" ] || case " $only " in *" $1 "*) ;; *) return 1 ;; esac
}
root=$(cd "$(dirname "$0")/../.." && pwd)
torch=2.13.0  # the version in constraints.txt: the arithmetic is the same for all

install() { # name, then what pip is to install
    wanted "$1" || return 0
    environment=$root/.venv-peers/$1
    shift
    [ -e "$environment/installed" ] && return 0
    "$python" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet "torch==$torch" numpy "$@"
    touch "$environment/installed"
}

install flower "flwr[simulation]==1.41.0"
install pfl "pfl==0.6.0"
install opacus "opacus==1.6.0"
install mostlyai "mostlyai-engine==2.7.3"
# it brings a torchvision of another torch along, which cannot be imported and which it does not need
! wanted mostlyai || "$root/.venv-peers/mostlyai/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio
install smartnoise "smartnoise-synth==1.0.8" pyarrow setuptools
install crypten onnx omegaconf pyyaml
! wanted crypten || "$root/.venv-peers/crypten/bin/python" -m pip install --quiet --no-deps crypten==0.4.1  # what else it asks for is for its examples

plain() { # the same without torch, for peers that do not compute with it
    wanted "$1" || return 0
    environment=$root/.venv-peers/$1
    shift
    [ -e "$environment/installed" ] && return 0
    "$python" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet "$@"
    touch "$environment/installed"
}

plain anjana "anjana==1.2.3"
plain openmined "openmined-psi==2.0.6"
plain spu "spu==0.9.5" # about 1 GB with the jax it asks for
plain arf "arfpy==0.1.1" "numpy<2.4" "pandas<3" pyarrow # arfpy calls numpy.in1d, which 2.4 removed; synthcity's plugin calls arfpy
plain judges numpy pandas scikit-learn pyarrow tqdm scipy plotly joblib
# SDMetrics asks for copulas (Business Source License), Anonymeter for numpy < 1.27: neither is needed for what publish.py uses
! wanted judges || "$root/.venv-peers/judges/bin/python" -m pip install --quiet --no-deps sdmetrics==0.32.0 anonymeter==1.1.0 polars polars-runtime-32 numba llvmlite
