showHead();
showPipeline();
showGraph();
showNothingSelected();
showSearch();
showLimits();
showTimeline();
showMemory();
