"""A kernel that reverses 256 words through shared memory, and what goes wrong with it."""

REVERSE = """\
.version 8.0
.target sm_80
.address_size 64
.visible .entry reverse(.param .u64 source, .param .u64 target)
{
    .reg .b32 %r<5>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 tile[1024];
    mov.u32       %r0, %tid.x;
    ld.param.u64  %rd0, [source];
    mad.wide.u32  %rd1, %r0, 4, %rd0;
    ld.global.b32 %r1, [%rd1];
    mov.u32       %r2, tile;
    mad.lo.u32    %r3, %r0, 4, %r2;
    st.shared.b32 [%r3], %r1;
    bar.sync      0;
    sub.u32       %r4, 255, %r0;
    mad.lo.u32    %r3, %r4, 4, %r2;
    ld.shared.b32 %r1, [%r3];
    ld.param.u64  %rd2, [target];
    mad.wide.u32  %rd3, %r0, 4, %rd2;
    st.global.b32 [%rd3], %r1;
    ret;
}
"""

#: Right when all threads go together, wrong in other orders.
RACY = REVERSE.replace("bar.sync      0;", "")

#: Every thread stores `100 + its warp` to one place: no fault, but which store is last varies.
LAST_WINS = """\
.version 8.0
.target sm_80
.address_size 64
.visible .entry last(.param .u64 target)
{
    .reg .b32 %r<3>;
    .reg .f32 %f<1>;
    .reg .b64 %rd<1>;
    mov.u32       %r0, %tid.x;
    shr.u32       %r1, %r0, 5;
    add.u32       %r2, %r1, 100;
    cvt.rn.f32.u32 %f0, %r2;
    ld.param.u64  %rd0, [target];
    st.global.f32 [%rd0], %f0;
    ret;
}
"""
