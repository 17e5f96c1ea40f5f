"""The program around a generated model: main.c, a Makefile, and a board to try it on without hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.export.c_arrays import Array
from bifl.export.c_model import MARK, Code


class Vectors(NamedTuple):
    """Inputs, and what PyTorch makes of them."""

    inputs: npt.NDArray[np.generic]  # (n, inputs), raw
    outputs: npt.NDArray[np.float32]  # (n, outputs)


TOLERANCE = 1e-3  # of a test vector's outputs, relative to the largest


def main(code: Code, vectors: Vectors, about: str) -> str:
    """main.c: raw inputs from standard input, a class (or numbers) a line; --test compares with PyTorch's outputs."""
    arrays = [Array("test_inputs", vectors.inputs), Array("test_outputs", vectors.outputs)]
    allowed = max(float(np.abs(vectors.outputs).max()) * TOLERANCE, TOLERANCE)
    show = '        printf("%d\\n", found);' if code.classifies else _NUMBERS
    return f"""\
/* {about}
   {MARK}. Reads raw inputs from standard input, one array of MODEL_INPUT_SIZE values after the other, and prints
   {"one class a line" if code.classifies else "the outputs of one input a line"}. With --test it computes the test vectors \
below and compares. */
#include <stdio.h>
#include <string.h>

#include "model.h"

#define TESTS {len(vectors.inputs)}
#define ALLOWED {allowed:.6g}f /* difference from PyTorch's outputs */

{arrays[0].text}
{arrays[1].text}
static model_input input[MODEL_INPUT_SIZE];
static float output[MODEL_OUTPUT_SIZE], work[MODEL_WORK_SIZE];

static int test(void)
{{
    int wrong = 0;
    for (int i = 0; i < TESTS; i++) {{
        model_predict(test_inputs + (long)i * MODEL_INPUT_SIZE, output, work);
        for (int j = 0; j < MODEL_OUTPUT_SIZE; j++) {{
            const float difference = output[j] - test_outputs[i * MODEL_OUTPUT_SIZE + j];
            if (!(difference <= ALLOWED && difference >= -ALLOWED))
                wrong++;
        }}
    }}
    printf("%d test vectors, %d outputs wrong; %d bytes of constants, %d bytes of memory\\n", TESTS, wrong, MODEL_FLASH_BYTES,
           MODEL_RAM_BYTES);
    return wrong > 0;
}}

int main(int count, char **words)
{{
    if (count > 1 && strcmp(words[1], "--test") == 0)
        return test();
    for (;;) {{
        const size_t got = fread(input, sizeof input[0], MODEL_INPUT_SIZE, stdin);
        if (got == 0)
            return 0;
        if (got < MODEL_INPUT_SIZE) {{
            fprintf(stderr, "predict: the input ends in the middle of an array of %d values\\n", MODEL_INPUT_SIZE);
            return 2;
        }}
        {"const int found = " if code.classifies else ""}model_predict(input, output, work);
{show}
    }}
}}
"""


_NUMBERS = """\
        for (int j = 0; j < MODEL_OUTPUT_SIZE; j++)
            printf("%s%.9g", j ? " " : "", (double)output[j]);
        printf("\\n");"""


def makefile(libraries: Sequence[str]) -> str:
    """Builds ./predict here, and predict.elf for a Cortex-M4 board that qemu has."""
    return f"""\
# {MARK}
#   make            builds ./predict: raw inputs on standard input, one answer a line
#   make test       compares test vectors with PyTorch's outputs
#   make qemu       does the same on an emulated Cortex-M4 (arm-none-eabi-gcc and qemu-system-arm)
# For the fastest code on this machine: make CFLAGS='-O3 -march=native'
CC = cc
CFLAGS = -O3
ARM = arm-none-eabi-gcc
ARM_FLAGS = -mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16 -O2
STRICT = -std=c99 -Wall -Wextra -pedantic -ffp-contract=off
LIBS = {" ".join(libraries)}
QEMU = qemu-system-arm -machine mps2-an386 -nographic -monitor none -serial none

predict: main.c model.c model.h
	$(CC) $(STRICT) $(CFLAGS) main.c model.c -o $@ $(LIBS)

predict.elf: main.c model.c model.h board.c board.ld
	$(ARM) $(STRICT) $(ARM_FLAGS) main.c model.c board.c -o $@ -T board.ld -nostartfiles --specs=rdimon.specs -lc -lrdimon $(LIBS)

test: predict
	./predict --test

qemu: predict.elf
	$(QEMU) -semihosting-config enable=on,target=native,arg=predict,arg=--test -kernel predict.elf

clean:
	rm -f predict predict.elf

.PHONY: test qemu clean
"""


BOARD = f"""\
/* {MARK}. The start of a Cortex-M4: vectors, memory, floating point; files and text go to the host by semihosting. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern uint32_t board_stack, board_data, board_data_end, board_data_load, board_bss, board_bss_end;
extern void initialise_monitor_handles(void);
extern int main(int count, char **words);
void board_start(void);
void _init(void);
void _fini(void);

void _init(void) {{}} /* what the C library calls before and after main: nothing here */
void _fini(void) {{}}

/* The host's command line: SYS_GET_CMDLINE. */
static int command_line(char *text, uint32_t size)
{{
    struct {{
        char *text;
        uint32_t size;
    }} block = {{text, size}};
    register uint32_t call __asm__("r0") = 0x15;
    register void *at __asm__("r1") = &block;
    __asm__ volatile("bkpt 0xab" : "+r"(call) : "r"(at) : "memory");
    return (int)call;
}}

void board_start(void)
{{
    static char text[256];
    static char *words[8];
    int count = 0;
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* switch the floating-point unit on */
    __asm__ volatile("dsb\\n isb");
    memcpy(&board_data, &board_data_load, (size_t)((char *)&board_data_end - (char *)&board_data));
    memset(&board_bss, 0, (size_t)((char *)&board_bss_end - (char *)&board_bss));
    initialise_monitor_handles();
    if (command_line(text, sizeof text) == 0)
        for (char *word = strtok(text, " "); word && count < 8; word = strtok(NULL, " "))
            words[count++] = word;
    exit(main(count, words));
}}

static void board_fault(void)
{{
    for (;;)
        ;
}}

struct vectors {{
    uint32_t *stack;
    void (*handlers[15])(void);
}};

__attribute__((section(".vectors"), used)) static const struct vectors board_vectors = {{
    &board_stack,
    {{board_start, board_fault, board_fault, board_fault, board_fault, board_fault, 0, 0, 0, 0, board_fault, board_fault, 0,
     board_fault, board_fault}},
}};
"""

LINKER = f"""\
/* {MARK}. The mps2-an386 board: 4 MB of code memory, 4 MB of data memory. */
MEMORY {{
    FLASH (rx) : ORIGIN = 0x00000000, LENGTH = 4M
    RAM (rwx) : ORIGIN = 0x20000000, LENGTH = 4M
}}
SECTIONS {{
    .text : {{
        KEEP(*(.vectors))
        *(.text*)
        *(.rodata*)
        KEEP(*(.init))
        KEEP(*(.fini))
    }} > FLASH
    .ARM.exidx : {{ *(.ARM.exidx*) }} > FLASH
    board_data_load = LOADADDR(.data);
    .data : {{ board_data = .; *(.data*) . = ALIGN(4); board_data_end = .; }} > RAM AT > FLASH
    .bss : {{ board_bss = .; *(.bss*) *(COMMON) . = ALIGN(8); board_bss_end = .; }} > RAM
    end = .;
    board_stack = ORIGIN(RAM) + LENGTH(RAM);
}}
ENTRY(board_start)
"""
