# The build is CMake's; these are short names for what people do most.
.PHONY: all demo test quick clean

all:
	@. scripts/setup.sh && build build

demo:
	@./demo.sh

test:
	@./test.sh

quick:
	@./test.sh quick

clean:
	rm -rf build build-asan demo-out
