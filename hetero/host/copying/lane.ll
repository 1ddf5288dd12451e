; sha256 of lane.c: ee36ffc37e69a5fe6d9ad36efb2b7fce62b3f694fd2a672656b93da1f2f2d79c

%struct.team = type { %struct.line, %struct.line, i64, i32 (i64*)*, i32 ()*, i64, [4 x i64], [8 x i64], %struct.line, [16 x %struct.task] }
%struct.line = type { i64, [7 x i64] }
%struct.task = type { %struct.line, %struct.line, %struct.line, %struct.line, [16 x i64], i8* (i8*, i8*, i64)*, i32 (i8*, i8*, i64, i64)*, i32 (i64, i64)*, i32 (i64)*, i32 (i64)*, i32 (i64)*, i32 ()*, i32 (i64*)*, i32 (i64)*, i8*, i8*, i64, i64, i64, i64, i64, i64, i64, i8*, i64, i64*, %struct.team*, i64, i64, i64, i64, i64, [16 x i64], [5 x i64] }
%struct.leader = type { %struct.task*, i64, i64, i64, i64, i32, i64, i64, i64 }

define i32 @serve(%struct.team* %0) {
  %2 = getelementptr inbounds %struct.team, %struct.team* %0, i64 0, i32 0, i32 0
  %3 = load atomic i64, i64* %2 seq_cst, align 8
  %4 = icmp eq i64 %3, 0
  br i1 %4, label %5, label %108

5:
  %6 = getelementptr inbounds %struct.team, %struct.team* %0, i64 0, i32 9, i64 0
  %7 = getelementptr inbounds %struct.team, %struct.team* %0, i64 0, i32 9, i64 16
  %8 = getelementptr inbounds %struct.team, %struct.team* %0, i64 0, i32 2
  %9 = getelementptr inbounds %struct.team, %struct.team* %0, i64 0, i32 1, i32 0
  %10 = getelementptr inbounds %struct.team, %struct.team* %0, i64 0, i32 3
  %11 = getelementptr inbounds %struct.team, %struct.team* %0, i64 0, i32 7, i64 0
  %12 = getelementptr inbounds %struct.team, %struct.team* %0, i64 0, i32 4
  br label %13

13:
  %14 = phi i64 [ 0, %5 ], [ %56, %55 ]
  %15 = phi %struct.task* [ %6, %5 ], [ %57, %55 ]
  %16 = getelementptr inbounds %struct.task, %struct.task* %15, i64 0, i32 0, i32 0
  %17 = load atomic i64, i64* %16 seq_cst, align 8
  %18 = icmp eq i64 %17, 0
  br i1 %18, label %51, label %19

19:
  %20 = getelementptr inbounds %struct.task, %struct.task* %15, i64 0, i32 1, i32 0
  %21 = load atomic i64, i64* %20 seq_cst, align 8
  %22 = getelementptr inbounds %struct.task, %struct.task* %15, i64 0, i32 31
  %23 = load i64, i64* %22, align 8
  %24 = icmp slt i64 %21, %23
  br i1 %24, label %25, label %51

25:
  %26 = atomicrmw add i64* %20, i64 1 seq_cst, align 8
  %27 = load atomic i64, i64* %16 seq_cst, align 8
  %28 = icmp eq i64 %27, 0
  br i1 %28, label %48, label %29

29:
  %30 = load i64, i64* %22, align 8
  %31 = icmp slt i64 %26, %30
  br i1 %31, label %32, label %48

32:
  %33 = getelementptr inbounds %struct.task, %struct.task* %15, i64 0, i32 2, i32 0
  %34 = getelementptr inbounds %struct.task, %struct.task* %15, i64 0, i32 3, i32 0
  br label %35

35:
  %36 = phi i64 [ 0, %47 ], [ %14, %32 ]
  br label %37

37:
  %38 = load atomic i64, i64* %33 seq_cst, align 8
  %39 = load atomic i64, i64* %34 seq_cst, align 8
  %40 = icmp slt i64 %38, %39
  br i1 %40, label %41, label %48

41:
  %42 = add nsw i64 %38, 1
  %43 = cmpxchg i64* %33, i64 %38, i64 %42 seq_cst seq_cst, align 8
  %44 = extractvalue { i64, i1 } %43, 1
  br i1 %44, label %45, label %37

45:
  %46 = icmp sgt i64 %38, -1
  br i1 %46, label %47, label %48

47:
  tail call fastcc void @copy(%struct.task* %15, i64 %38)
  br label %35

48:
  %49 = phi i64 [ %14, %29 ], [ %14, %25 ], [ %36, %37 ], [ %36, %45 ]
  %50 = atomicrmw add i64* %20, i64 -1 seq_cst, align 8
  br label %51

51:
  %52 = phi i64 [ %14, %19 ], [ %49, %48 ], [ %14, %13 ]
  %53 = getelementptr inbounds %struct.task, %struct.task* %15, i64 1
  %54 = icmp ult %struct.task* %53, %7
  br i1 %54, label %55, label %58

55:
  %56 = phi i64 [ %52, %51 ], [ %66, %65 ]
  %57 = phi %struct.task* [ %53, %51 ], [ %6, %65 ]
  br label %13

58:
  %59 = add nsw i64 %52, 1
  %60 = load i64, i64* %8, align 8
  %61 = icmp slt i64 %59, %60
  br i1 %61, label %62, label %69

62:
  %63 = load i32 ()*, i32 ()** %12, align 8
  %64 = tail call i32 %63()
  br label %65

65:
  %66 = phi i64 [ %59, %62 ], [ 0, %104 ], [ 0, %100 ]
  %67 = load atomic i64, i64* %2 seq_cst, align 8
  %68 = icmp eq i64 %67, 0
  br i1 %68, label %55, label %108

69:
  %70 = atomicrmw add i64* %9, i64 1 seq_cst, align 8
  br label %71

71:
  %72 = phi %struct.task* [ %6, %69 ], [ %92, %90 ]
  %73 = phi i32 [ 0, %69 ], [ %91, %90 ]
  %74 = getelementptr inbounds %struct.task, %struct.task* %72, i64 0, i32 0, i32 0
  %75 = load atomic i64, i64* %74 seq_cst, align 8
  %76 = icmp eq i64 %75, 0
  br i1 %76, label %90, label %77

77:
  %78 = getelementptr inbounds %struct.task, %struct.task* %72, i64 0, i32 2, i32 0
  %79 = load atomic i64, i64* %78 seq_cst, align 8
  %80 = getelementptr inbounds %struct.task, %struct.task* %72, i64 0, i32 3, i32 0
  %81 = load atomic i64, i64* %80 seq_cst, align 8
  %82 = icmp slt i64 %79, %81
  br i1 %82, label %83, label %90

83:
  %84 = getelementptr inbounds %struct.task, %struct.task* %72, i64 0, i32 1, i32 0
  %85 = load atomic i64, i64* %84 seq_cst, align 8
  %86 = getelementptr inbounds %struct.task, %struct.task* %72, i64 0, i32 31
  %87 = load i64, i64* %86, align 8
  %88 = icmp slt i64 %85, %87
  %89 = select i1 %88, i32 1, i32 %73
  br label %90

90:
  %91 = phi i32 [ %73, %77 ], [ %73, %71 ], [ %89, %83 ]
  %92 = getelementptr inbounds %struct.task, %struct.task* %72, i64 1
  %93 = icmp ult %struct.task* %92, %7
  br i1 %93, label %71, label %94

94:
  %95 = icmp eq i32 %91, 0
  br i1 %95, label %96, label %97

96:
  br label %104

97:
  %98 = load atomic i64, i64* %9 seq_cst, align 8
  %99 = icmp slt i64 %98, 1
  br i1 %99, label %96, label %100

100:
  %101 = add nsw i64 %98, -1
  %102 = cmpxchg i64* %9, i64 %98, i64 %101 seq_cst seq_cst, align 8
  %103 = extractvalue { i64, i1 } %102, 1
  br i1 %103, label %65, label %97

104:
  %105 = load i32 (i64*)*, i32 (i64*)** %10, align 8
  %106 = tail call i32 %105(i64* %11)
  %107 = icmp eq i32 %106, 0
  br i1 %107, label %65, label %104

108:
  ret i32 0
}

define internal fastcc void @copy(%struct.task* %0, i64 %1) {
  %3 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 18
  %4 = load i64, i64* %3, align 8
  %5 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 19
  %6 = load i64, i64* %5, align 8
  %7 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 17
  %8 = load i64, i64* %7, align 8
  %9 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 21
  %10 = load i64, i64* %9, align 8
  %11 = add i64 %4, -1
  %12 = add i64 %11, %6
  %13 = sdiv i64 %12, %6
  %14 = sdiv i64 %1, %13
  %15 = srem i64 %1, %13
  %16 = mul nsw i64 %15, %6
  %17 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 24
  %18 = load i64, i64* %17, align 8
  %19 = srem i64 %14, %18
  %20 = mul nsw i64 %14, %4
  %21 = add nsw i64 %16, %6
  %22 = icmp slt i64 %4, %21
  %23 = select i1 %22, i64 %4, i64 %21
  %24 = add nsw i64 %23, %20
  %25 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 16
  %26 = load i64, i64* %25, align 8
  %27 = add nsw i64 %26, %8
  %28 = icmp slt i64 %24, %27
  %29 = select i1 %28, i64 %24, i64 %27
  %30 = add nsw i64 %16, %20
  %31 = icmp slt i64 %30, %8
  %32 = select i1 %31, i64 %8, i64 %30
  %33 = icmp sgt i64 %29, %32
  br i1 %33, label %34, label %99

34:
  %35 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 14
  %36 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 22
  %37 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 23
  %38 = mul nsw i64 %19, %4
  %39 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 28
  %40 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 27
  %41 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 5
  br label %42

42:
  %43 = phi i64 [ %32, %34 ], [ %97, %96 ]
  %44 = sub nsw i64 %43, %8
  %45 = srem i64 %44, %10
  %46 = sub nsw i64 %10, %45
  %47 = sub nsw i64 %29, %43
  %48 = icmp slt i64 %46, %47
  %49 = select i1 %48, i64 %46, i64 %47
  %50 = load i8*, i8** %35, align 8
  %51 = sdiv i64 %44, %10
  %52 = load i64, i64* %36, align 8
  %53 = mul nsw i64 %52, %51
  %54 = getelementptr inbounds i8, i8* %50, i64 %53
  %55 = getelementptr inbounds i8, i8* %54, i64 %45
  %56 = load i8*, i8** %37, align 8
  %57 = getelementptr inbounds i8, i8* %56, i64 %38
  %58 = sub nsw i64 %43, %20
  %59 = getelementptr inbounds i8, i8* %57, i64 %58
  %60 = load i64, i64* %39, align 8
  %61 = icmp eq i64 %60, 0
  %62 = select i1 %61, i8* %59, i8* %55
  %63 = select i1 %61, i8* %55, i8* %59
  %64 = load i64, i64* %40, align 8
  %65 = icmp slt i64 %49, %64
  br i1 %65, label %93, label %66

66:
  %67 = ptrtoint i8* %62 to i64
  %68 = sub nsw i64 0, %67
  %69 = and i64 %68, 63
  %70 = sub nsw i64 %49, %69
  %71 = and i64 %70, -64
  %72 = load i8* (i8*, i8*, i64)*, i8* (i8*, i8*, i64)** %41, align 8
  %73 = tail call i8* %72(i8* %62, i8* %63, i64 %69)
  %74 = getelementptr inbounds i8, i8* %62, i64 %69
  %75 = getelementptr inbounds i8, i8* %63, i64 %69
  %76 = icmp sgt i64 %71, 0
  br i1 %76, label %77, label %86

77:
  %78 = phi i64 [ %84, %77 ], [ 0, %66 ]
  %79 = getelementptr inbounds i8, i8* %75, i64 %78
  %80 = bitcast i8* %79 to <8 x i64>*
  %81 = load <8 x i64>, <8 x i64>* %80, align 1
  %82 = getelementptr inbounds i8, i8* %74, i64 %78
  %83 = bitcast i8* %82 to <8 x i64>*
  store <8 x i64> %81, <8 x i64>* %83, align 64, !nontemporal !4
  %84 = add nuw nsw i64 %78, 64
  %85 = icmp slt i64 %84, %71
  br i1 %85, label %77, label %86

86:
  %87 = or i64 %71, %69
  %88 = getelementptr inbounds i8, i8* %62, i64 %87
  %89 = getelementptr inbounds i8, i8* %63, i64 %87
  %90 = load i8* (i8*, i8*, i64)*, i8* (i8*, i8*, i64)** %41, align 8
  %91 = and i64 %70, 63
  %92 = tail call i8* %90(i8* %88, i8* %89, i64 %91)
  br label %96

93:
  %94 = load i8* (i8*, i8*, i64)*, i8* (i8*, i8*, i64)** %41, align 8
  %95 = tail call i8* %94(i8* %62, i8* %63, i64 %49)
  br label %96

96:
  %97 = add nsw i64 %49, %43
  %98 = icmp sgt i64 %29, %97
  br i1 %98, label %42, label %99

99:
  fence seq_cst
  %100 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 4, i64 %19
  %101 = atomicrmw add i64* %100, i64 1 seq_cst, align 8
  ret void
}

define i32 @upload(%struct.task* %0) {
  %2 = alloca %struct.leader, align 8
  %3 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 0
  store %struct.task* %0, %struct.task** %3, align 8
  %4 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 16
  %5 = load i64, i64* %4, align 8
  %6 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 17
  %7 = load i64, i64* %6, align 8
  %8 = add nsw i64 %7, %5
  %9 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 1
  store i64 %8, i64* %9, align 8
  %10 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 18
  %11 = load i64, i64* %10, align 8
  %12 = add i64 %11, -1
  %13 = add i64 %12, %8
  %14 = sdiv i64 %13, %11
  %15 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 2
  store i64 %14, i64* %15, align 8
  %16 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 19
  %17 = load i64, i64* %16, align 8
  %18 = add i64 %12, %17
  %19 = sdiv i64 %18, %17
  %20 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 3
  store i64 %19, i64* %20, align 8
  %21 = add nsw i64 %14, -1
  %22 = mul nsw i64 %21, %11
  %23 = xor i64 %22, -1
  %24 = add i64 %8, %23
  %25 = add i64 %24, %17
  %26 = sdiv i64 %25, %17
  %27 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 4
  store i64 %26, i64* %27, align 8
  %28 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 5
  store i32 0, i32* %28, align 8
  %29 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 8
  store i64 0, i64* %29, align 8
  %30 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 6
  %31 = bitcast i64* %30 to <2 x i64>*
  store <2 x i64> zeroinitializer, <2 x i64>* %31, align 8
  %32 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 24
  %33 = load i64, i64* %32, align 8
  %34 = icmp slt i64 %14, %33
  %35 = select i1 %34, i64 %14, i64 %33
  %36 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 26
  %37 = load %struct.team*, %struct.team** %36, align 8
  %38 = getelementptr inbounds %struct.team, %struct.team* %37, i64 0, i32 8, i32 0
  %39 = atomicrmw add i64* %38, i64 1 seq_cst, align 8
  %40 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 0, i32 0
  store atomic i64 1, i64* %40 seq_cst, align 8
  br label %41

41:
  %42 = phi i64 [ %103, %99 ], [ %35, %1 ]
  %43 = phi i64 [ %45, %99 ], [ 0, %1 ]
  call fastcc void @allow(%struct.leader* %2, i64 %42)
  br label %44

44:
  %45 = phi i64 [ %43, %41 ], [ %56, %77 ]
  %46 = load %struct.task*, %struct.task** %3, align 8
  %47 = getelementptr inbounds %struct.task, %struct.task* %46, i64 0, i32 25
  %48 = load i64*, i64** %47, align 8
  %49 = load atomic i64, i64* %48 seq_cst, align 8
  %50 = icmp ne i64 %49, 0
  %51 = load i32, i32* %28, align 8
  %52 = icmp eq i32 %51, 0
  %53 = select i1 %50, i1 %52, i1 false
  br i1 %53, label %57, label %54

54:
  %55 = icmp slt i64 %45, %42
  %56 = add nsw i64 %45, 1
  br label %58

57:
  store i32 -1, i32* %28, align 8
  br label %127

58:
  %59 = phi i32 [ %51, %54 ], [ %124, %118 ]
  %60 = icmp eq i32 %59, 0
  br i1 %60, label %61, label %127

61:
  br i1 %55, label %64, label %62

62:
  %63 = load i64, i64* %15, align 8
  br label %81

64:
  %65 = load %struct.task*, %struct.task** %3, align 8
  %66 = getelementptr inbounds %struct.task, %struct.task* %65, i64 0, i32 24
  %67 = load i64, i64* %66, align 8
  %68 = srem i64 %45, %67
  %69 = getelementptr inbounds %struct.task, %struct.task* %65, i64 0, i32 4, i64 %68
  %70 = load atomic i64, i64* %69 seq_cst, align 8
  %71 = load i64, i64* %15, align 8
  %72 = icmp eq i64 %56, %71
  %73 = load i64, i64* %27, align 8
  %74 = load i64, i64* %20, align 8
  %75 = select i1 %72, i64 %73, i64 %74
  %76 = icmp eq i64 %70, %75
  br i1 %76, label %77, label %81

77:
  %78 = getelementptr inbounds %struct.task, %struct.task* %65, i64 0, i32 4, i64 %68
  store atomic i64 0, i64* %78 seq_cst, align 8
  call fastcc void @move(%struct.leader* %2, i64 %45)
  %79 = load i64, i64* %15, align 8
  %80 = icmp eq i64 %56, %79
  br i1 %80, label %127, label %44

81:
  %82 = phi i64 [ %63, %62 ], [ %71, %64 ]
  %83 = load i64, i64* %32, align 8
  %84 = sub nsw i64 %42, %83
  %85 = icmp slt i64 %42, %82
  %86 = icmp slt i64 %84, %45
  %87 = select i1 %85, i1 %86, i1 false
  br i1 %87, label %88, label %118

88:
  %89 = load %struct.task*, %struct.task** %3, align 8
  %90 = getelementptr inbounds %struct.task, %struct.task* %89, i64 0, i32 8
  %91 = load i32 (i64)*, i32 (i64)** %90, align 8
  %92 = getelementptr inbounds %struct.task, %struct.task* %89, i64 0, i32 24
  %93 = load i64, i64* %92, align 8
  %94 = srem i64 %84, %93
  %95 = getelementptr inbounds %struct.task, %struct.task* %89, i64 0, i32 32, i64 %94
  %96 = load i64, i64* %95, align 8
  %97 = tail call i32 %91(i64 %96)
  %98 = icmp eq i32 %97, 600
  br i1 %98, label %104, label %99

99:
  %100 = load i32, i32* %28, align 8
  %101 = icmp eq i32 %100, 0
  %102 = select i1 %101, i32 %97, i32 %100
  store i32 %102, i32* %28, align 8
  %103 = add nsw i64 %42, 1
  br label %41

104:
  %105 = load i64, i64* %30, align 8
  %106 = icmp sgt i64 %105, 999
  %107 = load i32, i32* %28, align 8
  %108 = icmp eq i32 %107, 0
  %109 = select i1 %106, i1 %108, i1 false
  br i1 %109, label %110, label %118

110:
  %111 = getelementptr inbounds %struct.task, %struct.task* %89, i64 0, i32 9
  %112 = load i32 (i64)*, i32 (i64)** %111, align 8
  %113 = load i64, i64* %92, align 8
  %114 = srem i64 %84, %113
  %115 = getelementptr inbounds %struct.task, %struct.task* %89, i64 0, i32 32, i64 %114
  %116 = load i64, i64* %115, align 8
  %117 = tail call i32 %112(i64 %116)
  store i32 %117, i32* %28, align 8
  br label %118

118:
  call fastcc void @help(%struct.leader* %2)
  %119 = load %struct.task*, %struct.task** %3, align 8
  %120 = getelementptr inbounds %struct.task, %struct.task* %119, i64 0, i32 25
  %121 = load i64*, i64** %120, align 8
  %122 = load atomic i64, i64* %121 seq_cst, align 8
  %123 = icmp ne i64 %122, 0
  %124 = load i32, i32* %28, align 8
  %125 = icmp eq i32 %124, 0
  %126 = select i1 %123, i1 %125, i1 false
  br i1 %126, label %57, label %58

127:
  %128 = call fastcc i32 @finished(%struct.leader* %2)
  ret i32 %128
}

define internal fastcc void @allow(%struct.leader* %0, i64 %1) {
  %3 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 0
  %4 = load %struct.task*, %struct.task** %3, align 8
  %5 = icmp eq i64 %1, 0
  br i1 %5, label %20, label %6

6:
  %7 = add nsw i64 %1, -1
  %8 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 3
  %9 = load i64, i64* %8, align 8
  %10 = mul nsw i64 %9, %7
  %11 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 2
  %12 = load i64, i64* %11, align 8
  %13 = icmp eq i64 %12, %1
  br i1 %13, label %14, label %17

14:
  %15 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 4
  %16 = load i64, i64* %15, align 8
  br label %17

17:
  %18 = phi i64 [ %16, %14 ], [ %9, %6 ]
  %19 = add nsw i64 %18, %10
  br label %20

20:
  %21 = phi i64 [ %19, %17 ], [ 0, %2 ]
  %22 = getelementptr inbounds %struct.task, %struct.task* %4, i64 0, i32 3, i32 0
  store atomic i64 %21, i64* %22 seq_cst, align 8
  %23 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 6
  store i64 0, i64* %23, align 8
  %24 = getelementptr inbounds %struct.task, %struct.task* %4, i64 0, i32 2, i32 0
  %25 = load atomic i64, i64* %24 seq_cst, align 8
  %26 = sub nsw i64 %21, %25
  %27 = getelementptr inbounds %struct.task, %struct.task* %4, i64 0, i32 26
  %28 = load %struct.team*, %struct.team** %27, align 8
  %29 = getelementptr inbounds %struct.team, %struct.team* %28, i64 0, i32 5
  %30 = load atomic i64, i64* %29 seq_cst, align 8
  %31 = getelementptr inbounds %struct.team, %struct.team* %28, i64 0, i32 8, i32 0
  %32 = load atomic i64, i64* %31 seq_cst, align 8
  %33 = getelementptr inbounds %struct.task, %struct.task* %4, i64 0, i32 31
  %34 = load i64, i64* %33, align 8
  %35 = mul nsw i64 %34, %32
  %36 = sub nsw i64 %30, %35
  %37 = getelementptr inbounds %struct.team, %struct.team* %28, i64 0, i32 1, i32 0
  %38 = load atomic i64, i64* %37 seq_cst, align 8
  %39 = icmp sgt i64 %38, 0
  %40 = icmp sgt i64 %26, 0
  %41 = and i1 %40, %39
  %42 = icmp sgt i64 %38, %36
  %43 = select i1 %41, i1 %42, i1 false
  br i1 %43, label %44, label %65

44:
  %45 = getelementptr inbounds %struct.task, %struct.task* %4, i64 0, i32 12
  %46 = getelementptr inbounds %struct.team, %struct.team* %28, i64 0, i32 7, i64 0
  br label %47

47:
  %48 = phi i64 [ %38, %44 ], [ %59, %57 ]
  %49 = phi i64 [ %26, %44 ], [ %58, %57 ]
  %50 = add nsw i64 %48, -1
  %51 = cmpxchg i64* %37, i64 %48, i64 %50 seq_cst seq_cst, align 8
  %52 = extractvalue { i64, i1 } %51, 1
  br i1 %52, label %53, label %57

53:
  %54 = load i32 (i64*)*, i32 (i64*)** %45, align 8
  %55 = tail call i32 %54(i64* %46)
  %56 = add nsw i64 %49, -1
  br label %57

57:
  %58 = phi i64 [ %56, %53 ], [ %49, %47 ]
  %59 = load atomic i64, i64* %37 seq_cst, align 8
  %60 = icmp sgt i64 %59, 0
  %61 = icmp sgt i64 %58, 0
  %62 = select i1 %60, i1 %61, i1 false
  %63 = icmp sgt i64 %59, %36
  %64 = select i1 %62, i1 %63, i1 false
  br i1 %64, label %47, label %65

65:
  ret void
}

define internal fastcc void @move(%struct.leader* %0, i64 %1) {
  %3 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 0
  %4 = load %struct.task*, %struct.task** %3, align 8
  %5 = getelementptr inbounds %struct.task, %struct.task* %4, i64 0, i32 18
  %6 = load i64, i64* %5, align 8
  %7 = mul nsw i64 %6, %1
  %8 = getelementptr inbounds %struct.task, %struct.task* %4, i64 0, i32 17
  %9 = load i64, i64* %8, align 8
  %10 = icmp slt i64 %7, %9
  %11 = select i1 %10, i64 %9, i64 %7
  %12 = add nsw i64 %7, %6
  %13 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 1
  %14 = load i64, i64* %13, align 8
  %15 = icmp slt i64 %12, %14
  %16 = select i1 %15, i64 %12, i64 %14
  %17 = sub nsw i64 %16, %11
  %18 = getelementptr inbounds %struct.task, %struct.task* %4, i64 0, i32 23
  %19 = load i8*, i8** %18, align 8
  %20 = getelementptr inbounds %struct.task, %struct.task* %4, i64 0, i32 24
  %21 = load i64, i64* %20, align 8
  %22 = srem i64 %1, %21
  %23 = mul nsw i64 %22, %6
  %24 = getelementptr inbounds i8, i8* %19, i64 %23
  %25 = sub nsw i64 %11, %7
  %26 = getelementptr inbounds i8, i8* %24, i64 %25
  %27 = getelementptr inbounds %struct.task, %struct.task* %4, i64 0, i32 15
  %28 = load i8*, i8** %27, align 8
  %29 = sub nsw i64 %11, %9
  %30 = getelementptr inbounds i8, i8* %28, i64 %29
  %31 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 5
  %32 = load i32, i32* %31, align 8
  %33 = icmp eq i32 %32, 0
  br i1 %33, label %34, label %61

34:
  %35 = getelementptr inbounds %struct.task, %struct.task* %4, i64 0, i32 28
  %36 = load i64, i64* %35, align 8
  %37 = icmp eq i64 %36, 0
  %38 = getelementptr inbounds %struct.task, %struct.task* %4, i64 0, i32 6
  %39 = load i32 (i8*, i8*, i64, i64)*, i32 (i8*, i8*, i64, i64)** %38, align 8
  %40 = getelementptr inbounds %struct.task, %struct.task* %4, i64 0, i32 20
  %41 = load i64, i64* %40, align 8
  br i1 %37, label %44, label %42

42:
  %43 = tail call i32 %39(i8* %26, i8* %30, i64 %17, i64 %41)
  br label %46

44:
  %45 = tail call i32 %39(i8* %30, i8* %26, i64 %17, i64 %41)
  br label %46

46:
  %47 = phi i32 [ %45, %44 ], [ %43, %42 ]
  store i32 %47, i32* %31, align 8
  %48 = icmp eq i32 %47, 0
  br i1 %48, label %49, label %61

49:
  %50 = getelementptr inbounds %struct.task, %struct.task* %4, i64 0, i32 7
  %51 = load i32 (i64, i64)*, i32 (i64, i64)** %50, align 8
  %52 = load %struct.task*, %struct.task** %3, align 8
  %53 = getelementptr inbounds %struct.task, %struct.task* %52, i64 0, i32 24
  %54 = load i64, i64* %53, align 8
  %55 = srem i64 %1, %54
  %56 = getelementptr inbounds %struct.task, %struct.task* %52, i64 0, i32 32, i64 %55
  %57 = load i64, i64* %56, align 8
  %58 = getelementptr inbounds %struct.task, %struct.task* %4, i64 0, i32 20
  %59 = load i64, i64* %58, align 8
  %60 = tail call i32 %51(i64 %57, i64 %59)
  store i32 %60, i32* %31, align 8
  br label %61

61:
  ret void
}

define internal fastcc void @help(%struct.leader* %0) {
  %2 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 0
  %3 = load %struct.task*, %struct.task** %2, align 8
  %4 = getelementptr inbounds %struct.task, %struct.task* %3, i64 0, i32 2, i32 0
  %5 = load atomic i64, i64* %4 seq_cst, align 8
  %6 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 7
  %7 = load i64, i64* %6, align 8
  %8 = icmp eq i64 %5, %7
  br i1 %8, label %9, label %12

9:
  %10 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 8
  %11 = load i64, i64* %10, align 8
  br label %14

12:
  store i64 %5, i64* %6, align 8
  %13 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 8
  store i64 0, i64* %13, align 8
  br label %14

14:
  %15 = phi i64 [ %11, %9 ], [ 0, %12 ]
  %16 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 8
  %17 = getelementptr inbounds %struct.task, %struct.task* %3, i64 0, i32 29
  %18 = load i64, i64* %17, align 8
  %19 = icmp eq i64 %18, 0
  br i1 %19, label %23, label %20

20:
  %21 = getelementptr inbounds %struct.task, %struct.task* %3, i64 0, i32 30
  %22 = load i64, i64* %21, align 8
  br label %23

23:
  %24 = phi i64 [ %22, %20 ], [ 0, %14 ]
  %25 = icmp slt i64 %15, %24
  br i1 %25, label %40, label %26

26:
  %27 = getelementptr inbounds %struct.task, %struct.task* %3, i64 0, i32 3, i32 0
  br label %28

28:
  %29 = load atomic i64, i64* %4 seq_cst, align 8
  %30 = load atomic i64, i64* %27 seq_cst, align 8
  %31 = icmp slt i64 %29, %30
  br i1 %31, label %32, label %40

32:
  %33 = add nsw i64 %29, 1
  %34 = cmpxchg i64* %4, i64 %29, i64 %33 seq_cst seq_cst, align 8
  %35 = extractvalue { i64, i1 } %34, 1
  br i1 %35, label %36, label %28

36:
  %37 = icmp sgt i64 %29, -1
  br i1 %37, label %38, label %40

38:
  tail call fastcc void @copy(%struct.task* %3, i64 %29)
  %39 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 6
  store i64 0, i64* %39, align 8
  store i64 %33, i64* %6, align 8
  br label %56

40:
  %41 = load i64, i64* %16, align 8
  %42 = add nsw i64 %41, 1
  store i64 %42, i64* %16, align 8
  %43 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 6
  %44 = load i64, i64* %43, align 8
  %45 = add nsw i64 %44, 1
  store i64 %45, i64* %43, align 8
  %46 = load i64, i64* %17, align 8
  %47 = icmp eq i64 %46, 0
  br i1 %47, label %52, label %48

48:
  %49 = getelementptr inbounds %struct.task, %struct.task* %3, i64 0, i32 13
  %50 = load i32 (i64)*, i32 (i64)** %49, align 8
  %51 = tail call i32 %50(i64 %46)
  br label %56

52:
  %53 = getelementptr inbounds %struct.task, %struct.task* %3, i64 0, i32 11
  %54 = load i32 ()*, i32 ()** %53, align 8
  %55 = tail call i32 %54()
  br label %56

56:
  ret void
}

define internal fastcc i32 @finished(%struct.leader* %0) {
  %2 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 0
  %3 = load %struct.task*, %struct.task** %2, align 8
  %4 = getelementptr inbounds %struct.task, %struct.task* %3, i64 0, i32 0, i32 0
  store atomic i64 0, i64* %4 seq_cst, align 8
  %5 = getelementptr inbounds %struct.task, %struct.task* %3, i64 0, i32 26
  %6 = load %struct.team*, %struct.team** %5, align 8
  %7 = getelementptr inbounds %struct.team, %struct.team* %6, i64 0, i32 8, i32 0
  %8 = atomicrmw add i64* %7, i64 -1 seq_cst, align 8
  %9 = getelementptr inbounds %struct.task, %struct.task* %3, i64 0, i32 3, i32 0
  store atomic i64 0, i64* %9 seq_cst, align 8
  %10 = getelementptr inbounds %struct.task, %struct.task* %3, i64 0, i32 1, i32 0
  %11 = load atomic i64, i64* %10 seq_cst, align 8
  %12 = icmp eq i64 %11, 0
  br i1 %12, label %20, label %13

13:
  %14 = getelementptr inbounds %struct.task, %struct.task* %3, i64 0, i32 11
  br label %15

15:
  %16 = load i32 ()*, i32 ()** %14, align 8
  %17 = tail call i32 %16()
  %18 = load atomic i64, i64* %10 seq_cst, align 8
  %19 = icmp eq i64 %18, 0
  br i1 %19, label %20, label %15

20:
  %21 = getelementptr inbounds %struct.task, %struct.task* %3, i64 0, i32 28
  %22 = load i64, i64* %21, align 8
  %23 = icmp eq i64 %22, 0
  br i1 %23, label %27, label %24

24:
  %25 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 5
  %26 = load i32, i32* %25, align 8
  br label %83

27:
  %28 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 2
  %29 = load i64, i64* %28, align 8
  %30 = add nsw i64 %29, -1
  %31 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 6
  store i64 0, i64* %31, align 8
  %32 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 5
  %33 = load i32, i32* %32, align 8
  %34 = icmp eq i32 %33, 0
  br i1 %34, label %35, label %86

35:
  %36 = load %struct.task*, %struct.task** %2, align 8
  %37 = getelementptr inbounds %struct.task, %struct.task* %36, i64 0, i32 8
  %38 = load i32 (i64)*, i32 (i64)** %37, align 8
  %39 = getelementptr inbounds %struct.task, %struct.task* %36, i64 0, i32 24
  %40 = load i64, i64* %39, align 8
  %41 = srem i64 %30, %40
  %42 = getelementptr inbounds %struct.task, %struct.task* %36, i64 0, i32 32, i64 %41
  %43 = load i64, i64* %42, align 8
  %44 = tail call i32 %38(i64 %43)
  %45 = icmp eq i32 %44, 600
  br i1 %45, label %46, label %48

46:
  %47 = getelementptr inbounds %struct.task, %struct.task* %3, i64 0, i32 11
  br label %53

48:
  %49 = phi i32 [ %44, %35 ], [ %81, %72 ]
  %50 = load i32, i32* %32, align 8
  %51 = icmp eq i32 %50, 0
  br i1 %51, label %52, label %86

52:
  store i32 %49, i32* %32, align 8
  br label %83

53:
  %54 = load i32 ()*, i32 ()** %47, align 8
  %55 = tail call i32 %54()
  %56 = load i64, i64* %31, align 8
  %57 = add nsw i64 %56, 1
  store i64 %57, i64* %31, align 8
  %58 = icmp sgt i64 %56, 998
  br i1 %58, label %59, label %72

59:
  %60 = load i32, i32* %32, align 8
  %61 = icmp eq i32 %60, 0
  br i1 %61, label %62, label %72

62:
  %63 = load %struct.task*, %struct.task** %2, align 8
  %64 = getelementptr inbounds %struct.task, %struct.task* %63, i64 0, i32 9
  %65 = load i32 (i64)*, i32 (i64)** %64, align 8
  %66 = getelementptr inbounds %struct.task, %struct.task* %63, i64 0, i32 24
  %67 = load i64, i64* %66, align 8
  %68 = srem i64 %30, %67
  %69 = getelementptr inbounds %struct.task, %struct.task* %63, i64 0, i32 32, i64 %68
  %70 = load i64, i64* %69, align 8
  %71 = tail call i32 %65(i64 %70)
  store i32 %71, i32* %32, align 8
  br label %72

72:
  %73 = load %struct.task*, %struct.task** %2, align 8
  %74 = getelementptr inbounds %struct.task, %struct.task* %73, i64 0, i32 8
  %75 = load i32 (i64)*, i32 (i64)** %74, align 8
  %76 = getelementptr inbounds %struct.task, %struct.task* %73, i64 0, i32 24
  %77 = load i64, i64* %76, align 8
  %78 = srem i64 %30, %77
  %79 = getelementptr inbounds %struct.task, %struct.task* %73, i64 0, i32 32, i64 %78
  %80 = load i64, i64* %79, align 8
  %81 = tail call i32 %75(i64 %80)
  %82 = icmp eq i32 %81, 600
  br i1 %82, label %53, label %48

83:
  %84 = phi i32 [ %26, %24 ], [ %49, %52 ]
  %85 = icmp eq i32 %84, 0
  br i1 %85, label %94, label %86

86:
  %87 = getelementptr inbounds %struct.leader, %struct.leader* %0, i64 0, i32 5
  %88 = getelementptr inbounds %struct.task, %struct.task* %3, i64 0, i32 10
  %89 = load i32 (i64)*, i32 (i64)** %88, align 8
  %90 = getelementptr inbounds %struct.task, %struct.task* %3, i64 0, i32 20
  %91 = load i64, i64* %90, align 8
  %92 = tail call i32 %89(i64 %91)
  %93 = load i32, i32* %87, align 8
  br label %94

94:
  %95 = phi i32 [ %93, %86 ], [ 0, %83 ]
  ret i32 %95
}

define i32 @download(%struct.task* %0) {
  %2 = alloca %struct.leader, align 8
  %3 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 0
  store %struct.task* %0, %struct.task** %3, align 8
  %4 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 16
  %5 = load i64, i64* %4, align 8
  %6 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 17
  %7 = load i64, i64* %6, align 8
  %8 = add nsw i64 %7, %5
  %9 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 1
  store i64 %8, i64* %9, align 8
  %10 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 18
  %11 = load i64, i64* %10, align 8
  %12 = add i64 %11, -1
  %13 = add i64 %12, %8
  %14 = sdiv i64 %13, %11
  %15 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 2
  store i64 %14, i64* %15, align 8
  %16 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 19
  %17 = load i64, i64* %16, align 8
  %18 = add i64 %12, %17
  %19 = sdiv i64 %18, %17
  %20 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 3
  store i64 %19, i64* %20, align 8
  %21 = add nsw i64 %14, -1
  %22 = mul nsw i64 %21, %11
  %23 = xor i64 %22, -1
  %24 = add i64 %8, %23
  %25 = add i64 %24, %17
  %26 = sdiv i64 %25, %17
  %27 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 4
  store i64 %26, i64* %27, align 8
  %28 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 5
  store i32 0, i32* %28, align 8
  %29 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 8
  store i64 0, i64* %29, align 8
  %30 = getelementptr inbounds %struct.leader, %struct.leader* %2, i64 0, i32 6
  %31 = bitcast i64* %30 to <2 x i64>*
  store <2 x i64> zeroinitializer, <2 x i64>* %31, align 8
  %32 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 24
  %33 = load i64, i64* %32, align 8
  %34 = icmp slt i64 %14, %33
  %35 = select i1 %34, i64 %14, i64 %33
  %36 = icmp sgt i64 %35, 0
  br i1 %36, label %37, label %45

37:
  %38 = phi i64 [ %39, %37 ], [ 0, %1 ]
  %39 = add nuw nsw i64 %38, 1
  call fastcc void @move(%struct.leader* %2, i64 %38)
  %40 = load i64, i64* %15, align 8
  %41 = load i64, i64* %32, align 8
  %42 = icmp slt i64 %40, %41
  %43 = select i1 %42, i64 %40, i64 %41
  %44 = icmp slt i64 %39, %43
  br i1 %44, label %37, label %45

45:
  %46 = phi i64 [ 0, %1 ], [ %39, %37 ]
  %47 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 26
  %48 = load %struct.team*, %struct.team** %47, align 8
  %49 = getelementptr inbounds %struct.team, %struct.team* %48, i64 0, i32 8, i32 0
  %50 = atomicrmw add i64* %49, i64 1 seq_cst, align 8
  %51 = getelementptr inbounds %struct.task, %struct.task* %0, i64 0, i32 0, i32 0
  store atomic i64 1, i64* %51 seq_cst, align 8
  %52 = load %struct.task*, %struct.task** %3, align 8
  %53 = getelementptr inbounds %struct.task, %struct.task* %52, i64 0, i32 25
  %54 = load i64*, i64** %53, align 8
  %55 = load atomic i64, i64* %54 seq_cst, align 8
  %56 = icmp ne i64 %55, 0
  %57 = load i32, i32* %28, align 8
  %58 = icmp eq i32 %57, 0
  %59 = select i1 %56, i1 %58, i1 false
  br i1 %59, label %71, label %60

60:
  %61 = phi i32 [ %104, %97 ], [ %57, %45 ]
  %62 = phi i64 [ %65, %97 ], [ 0, %45 ]
  %63 = phi i64 [ %68, %97 ], [ 0, %45 ]
  %64 = phi i64 [ %98, %97 ], [ %46, %45 ]
  %65 = add nuw nsw i64 %62, 1
  br label %66

66:
  %67 = phi i32 [ %61, %60 ], [ %129, %119 ]
  %68 = phi i64 [ %63, %60 ], [ %123, %119 ]
  %69 = icmp slt i64 %62, %68
  %70 = icmp slt i64 %68, %64
  br label %72

71:
  store i32 -1, i32* %28, align 8
  br label %155

72:
  %73 = phi i32 [ %67, %66 ], [ %152, %146 ]
  %74 = icmp eq i32 %73, 0
  br i1 %74, label %75, label %155

75:
  br i1 %69, label %76, label %107

76:
  %77 = load %struct.task*, %struct.task** %3, align 8
  %78 = getelementptr inbounds %struct.task, %struct.task* %77, i64 0, i32 24
  %79 = load i64, i64* %78, align 8
  %80 = srem i64 %62, %79
  %81 = getelementptr inbounds %struct.task, %struct.task* %77, i64 0, i32 4, i64 %80
  %82 = load atomic i64, i64* %81 seq_cst, align 8
  %83 = load i64, i64* %15, align 8
  %84 = icmp eq i64 %65, %83
  %85 = load i64, i64* %27, align 8
  %86 = load i64, i64* %20, align 8
  %87 = select i1 %84, i64 %85, i64 %86
  %88 = icmp eq i64 %82, %87
  br i1 %88, label %89, label %107

89:
  %90 = getelementptr inbounds %struct.task, %struct.task* %77, i64 0, i32 4, i64 %80
  store atomic i64 0, i64* %90 seq_cst, align 8
  %91 = load i64, i64* %15, align 8
  %92 = icmp eq i64 %65, %91
  br i1 %92, label %155, label %93

93:
  %94 = icmp slt i64 %64, %91
  br i1 %94, label %95, label %97

95:
  %96 = add nsw i64 %64, 1
  call fastcc void @move(%struct.leader* %2, i64 %64)
  br label %97

97:
  %98 = phi i64 [ %96, %95 ], [ %64, %93 ]
  %99 = load %struct.task*, %struct.task** %3, align 8
  %100 = getelementptr inbounds %struct.task, %struct.task* %99, i64 0, i32 25
  %101 = load i64*, i64** %100, align 8
  %102 = load atomic i64, i64* %101 seq_cst, align 8
  %103 = icmp ne i64 %102, 0
  %104 = load i32, i32* %28, align 8
  %105 = icmp eq i32 %104, 0
  %106 = select i1 %103, i1 %105, i1 false
  br i1 %106, label %71, label %60

107:
  br i1 %70, label %108, label %146

108:
  %109 = load %struct.task*, %struct.task** %3, align 8
  %110 = getelementptr inbounds %struct.task, %struct.task* %109, i64 0, i32 8
  %111 = load i32 (i64)*, i32 (i64)** %110, align 8
  %112 = getelementptr inbounds %struct.task, %struct.task* %109, i64 0, i32 24
  %113 = load i64, i64* %112, align 8
  %114 = srem i64 %68, %113
  %115 = getelementptr inbounds %struct.task, %struct.task* %109, i64 0, i32 32, i64 %114
  %116 = load i64, i64* %115, align 8
  %117 = tail call i32 %111(i64 %116)
  %118 = icmp eq i32 %117, 600
  br i1 %118, label %132, label %119

119:
  %120 = load i32, i32* %28, align 8
  %121 = icmp eq i32 %120, 0
  %122 = select i1 %121, i32 %117, i32 %120
  store i32 %122, i32* %28, align 8
  %123 = add nsw i64 %68, 1
  call fastcc void @allow(%struct.leader* %2, i64 %123)
  %124 = load %struct.task*, %struct.task** %3, align 8
  %125 = getelementptr inbounds %struct.task, %struct.task* %124, i64 0, i32 25
  %126 = load i64*, i64** %125, align 8
  %127 = load atomic i64, i64* %126 seq_cst, align 8
  %128 = icmp ne i64 %127, 0
  %129 = load i32, i32* %28, align 8
  %130 = icmp eq i32 %129, 0
  %131 = select i1 %128, i1 %130, i1 false
  br i1 %131, label %71, label %66

132:
  %133 = load i64, i64* %30, align 8
  %134 = icmp sgt i64 %133, 999
  %135 = load i32, i32* %28, align 8
  %136 = icmp eq i32 %135, 0
  %137 = select i1 %134, i1 %136, i1 false
  br i1 %137, label %138, label %146

138:
  %139 = getelementptr inbounds %struct.task, %struct.task* %109, i64 0, i32 9
  %140 = load i32 (i64)*, i32 (i64)** %139, align 8
  %141 = load i64, i64* %112, align 8
  %142 = srem i64 %68, %141
  %143 = getelementptr inbounds %struct.task, %struct.task* %109, i64 0, i32 32, i64 %142
  %144 = load i64, i64* %143, align 8
  %145 = tail call i32 %140(i64 %144)
  store i32 %145, i32* %28, align 8
  br label %146

146:
  call fastcc void @help(%struct.leader* %2)
  %147 = load %struct.task*, %struct.task** %3, align 8
  %148 = getelementptr inbounds %struct.task, %struct.task* %147, i64 0, i32 25
  %149 = load i64*, i64** %148, align 8
  %150 = load atomic i64, i64* %149 seq_cst, align 8
  %151 = icmp ne i64 %150, 0
  %152 = load i32, i32* %28, align 8
  %153 = icmp eq i32 %152, 0
  %154 = select i1 %151, i1 %153, i1 false
  br i1 %154, label %71, label %72

155:
  %156 = call fastcc i32 @finished(%struct.leader* %2)
  ret i32 %156
}

!4 = !{i32 1}
