"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.package import (
    Directory as Directory,
    EmptyMatchError as EmptyMatchError,
    GlobGroup as GlobGroup,
    Importer as Importer,
    ObjMismatchError as ObjMismatchError,
    ObjNotFoundError as ObjNotFoundError,
    OrderedImporter as OrderedImporter,
    PackageExporter as PackageExporter,
    PackageImporter as PackageImporter,
    PackagingError as PackagingError,
    analyze as analyze,
    file_structure_representation as file_structure_representation,
    find_file_dependencies as find_file_dependencies,
    glob_group as glob_group,
    importer as importer,
    is_from_package as is_from_package,
    package_exporter as package_exporter,
    package_importer as package_importer,
    sys_importer as sys_importer,
)
