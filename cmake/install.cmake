# `cmake --install build` (or `make install`): program, library, headers, package files, manual, completion, examples.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The package file finds its prefix from where it lies, so that an installed tree can be moved.
file(RELATIVE_PATH MX8_PREFIX_FROM_PC "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" MX8_PREFIX_FROM_PC "${MX8_PREFIX_FROM_PC}")
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/mx8)
configure_file(cmake/mx8.pc.in mx8.pc @ONLY)
configure_package_config_file(cmake/mx8-config.cmake.in mx8-config.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(mx8-config-version.cmake COMPATIBILITY SameMinorVersion)

# Under a prefix of one's own the program finds the libraries that it opens at run time.
file(RELATIVE_PATH MX8_LIBRARIES_FROM_PROGRAM "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
set_target_properties(mx8 PROPERTIES BUILD_WITH_INSTALL_RPATH ON
  INSTALL_RPATH "$ORIGIN/${MX8_LIBRARIES_FROM_PROGRAM}")
install(TARGETS mx8 RUNTIME)
install(TARGETS mx8_shared EXPORT mx8 LIBRARY INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET mx8_mpi)
  install(TARGETS mx8_mpi LIBRARY)
endif()
if(TARGET mx8_cuda)
  install(TARGETS mx8_cuda LIBRARY)
endif()
install(DIRECTORY include/mx8 DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT mx8 NAMESPACE mx8:: FILE mx8-targets.cmake DESTINATION ${package_folder})
install(FILES ${PROJECT_BINARY_DIR}/mx8-config.cmake ${PROJECT_BINARY_DIR}/mx8-config-version.cmake
  DESTINATION ${package_folder})
install(FILES ${PROJECT_BINARY_DIR}/mx8.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY examples/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)

# The manual page and the completion scripts are what the program says of itself.
foreach(page "man/mx8.1 man" "bash/mx8 completion bash" "zsh/_mx8 completion zsh")
  separate_arguments(page)
  list(POP_FRONT page file)
  get_filename_component(folder ${PROJECT_BINARY_DIR}/share/${file} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/share/${file} DEPENDS mx8
    COMMAND $<TARGET_FILE:mx8> ${page} >${PROJECT_BINARY_DIR}/share/${file})
  list(APPEND pages ${PROJECT_BINARY_DIR}/share/${file})
endforeach()
add_custom_target(pages ALL DEPENDS ${pages})
install(FILES ${PROJECT_BINARY_DIR}/share/man/mx8.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${PROJECT_BINARY_DIR}/share/bash/mx8 DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${PROJECT_BINARY_DIR}/share/zsh/_mx8 DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
