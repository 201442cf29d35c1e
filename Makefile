# The build is CMake's; these are short names for what people do most.
PREFIX ?= /usr/local

.PHONY: all demo test quick install wheel clean

all:
	@. scripts/setup.sh && build build

demo:
	@./demo.sh

test:
	@./test.sh

quick:
	@./test.sh quick

# make install PREFIX=$$HOME/.local, or DESTDIR=... for packages
install: all
	DESTDIR="$(DESTDIR)" cmake --install build --prefix "$(PREFIX)"

wheel: all
	python3 python/build_wheel.py build build/wheel

clean:
	rm -rf build build-asan demo-out
