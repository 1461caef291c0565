"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.hub import (
    DEFAULT_CACHE_DIR as DEFAULT_CACHE_DIR,
    ENV_GITHUB_TOKEN as ENV_GITHUB_TOKEN,
    ENV_TORCH_HOME as ENV_TORCH_HOME,
    ENV_XDG_CACHE_HOME as ENV_XDG_CACHE_HOME,
    MODULE_HUBCONF as MODULE_HUBCONF,
    READ_DATA_CHUNK as READ_DATA_CHUNK,
    VAR_DEPENDENCY as VAR_DEPENDENCY,
    download_url_to_file as download_url_to_file,
    get_dir as get_dir,
    help as help,
    list as list,
    load as load,
    load_state_dict_from_url as load_state_dict_from_url,
    set_dir as set_dir,
    torch as torch,
)
