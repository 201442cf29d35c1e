# The build is CMake's; these are short names for what people do most.
.PHONY: all demo test quick wheel clean

all:
	@. scripts/setup.sh && build build

demo:
	@./demo.sh

test:
	@./test.sh

quick:
	@./test.sh quick

wheel: all
	python3 python/build_wheel.py build build/wheel

clean:
	rm -rf build build-asan demo-out
