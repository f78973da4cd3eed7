# What of others a wheel holds, as CycloneDX in its .dist-info/sboms (PEP 770). What it stands on is not in it: that is
# named by its metadata, and to the byte by requirements/.

set(IET_PURL "pkg:pypi/implicit-execution-tracing@${SKBUILD_PROJECT_VERSION_FULL}")
set(IET_PYBIND11_PURL "pkg:pypi/pybind11@${pybind11_VERSION}")
set(IET_SBOM_NVCC "")
set(IET_SBOM_CUDA "")
set(IET_SBOM_CUDA_REF "")
if(TARGET _cuda)
  set(IET_SBOM_NVCC ",
        {\"type\": \"application\", \"name\": \"nvcc\", \"version\": \"${CMAKE_CUDA_COMPILER_VERSION}\"}")
  set(IET_SBOM_CUDA ",
    {
      \"type\": \"library\",
      \"bom-ref\": \"cudart\",
      \"name\": \"CUDA runtime\",
      \"version\": \"${CMAKE_CUDA_COMPILER_VERSION}\",
      \"description\": \"cudart_static of this toolkit, linked into iet/native/_cuda\",
      \"licenses\": [{\"license\": {\"name\": \"NVIDIA CUDA Toolkit EULA\"}}]
    }")
  set(IET_SBOM_CUDA_REF ", \"cudart\"")
endif()
file(STRINGS iet/marks/confusables.txt IET_CONFUSABLES_VERSION REGEX "confusables.txt, version ")
string(REGEX REPLACE ".*version ([0-9.]+),.*" "\\1" IET_CONFUSABLES_VERSION "${IET_CONFUSABLES_VERSION}")
file(SHA256 iet/demo/model/model.safetensors IET_MODEL_SHA256)
configure_file(cmake/sbom.cdx.json.in "${CMAKE_CURRENT_BINARY_DIR}/iet.cdx.json" @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/iet.cdx.json" DESTINATION "${SKBUILD_METADATA_DIR}/sboms")
